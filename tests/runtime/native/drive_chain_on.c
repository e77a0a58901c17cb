/* A model whose sizes depend on data on CUDA device 0 through haotuner.h: drive_chain_on PACK NAME ROWS LENGTH SEED OUT, with inputs as of
 * drive_chain.c. Writes all outputs one after the other. */
#include <string.h>

#include "on_device.h"

enum { ENDS = 8, ROOM = 1 << 16 };

typedef struct {
  DLTensor outputs[ENDS];
  size_t bytes[ENDS];
  int64_t shapes[ENDS][HT_MODEL_MAX_AXES];
  int none, asked;
} places;

static char host[ROOM];

static size_t bytes_of(const DLTensor* t) {
  size_t bytes = t->dtype.bits / 8;
  for (int a = 0; a < t->ndim; ++a) bytes *= (size_t)t->shape[a];
  return bytes;
}

static void* place(void* arg, int output, const DLTensor* wanted) {
  places* p = arg;
  ++p->asked;
  CHECK(wanted->device.device_type == kDLCUDA && wanted->device.device_id == 0 && wanted->strides == NULL && bytes_of(wanted) <= ROOM);
  if (output == p->none) return NULL; /* the caller has no memory for this one */
  p->bytes[output] = bytes_of(wanted);
  memcpy(p->shapes[output], wanted->shape, (size_t)wanted->ndim * 8);
  p->outputs[output] = upload(NULL, p->bytes[output] + 1, wanted->dtype, wanted->ndim, p->shapes[output]);
  return p->outputs[output].data;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_model* model;
  ht_model_end end;
  DLTensor inputs[ENDS];
  CUstream stream;
  CUgraph graph;
  static int64_t shapes[ENDS][HT_MODEL_MAX_AXES];
  static places none = {.none = 0}, first = {.none = -1}, all = {.none = -1};
  int in = 0, out = 0;
  CHECK(argc == 7);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK);
  enter_device();
  CHECK(ht_model_open(pack, argv[2], &model, &error) == HT_OK);
  CHECK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
  for (; ht_model_input(model, in, &end) == HT_OK; ++in) {
    int64_t count = 1;
    for (int a = 0; a < end.ndim; ++a) count *= shapes[in][a] = end.extents[a] < 0 ? atoll(argv[3]) : end.extents[a];
    for (int64_t i = 0; i < count; ++i) {
      if (end.dtype.code == kDLFloat) ((float*)(void*)host)[i] = (float)(i % 11 - 5) / 4;
      else ((int64_t*)(void*)host)[i] = atoll(argv[4]);
    }
    inputs[in] = upload(host, (size_t)count * end.dtype.bits / 8 + 1, end.dtype, end.ndim, shapes[in]);
  }
  while (ht_model_output(model, out, &end) == HT_OK) ++out;
  CHECK(cu.StreamSynchronize(NULL) == 0);
  const uint64_t seed = strtoull(argv[5], NULL, 10);
  CHECK(ht_model_run(model, inputs, inputs, &error) == HT_BAD_VALUE && strstr(error.text, "known only from data") != NULL);
  CHECK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0);
  CHECK(ht_model_queue_placed(model, inputs, &seed, place, &all, stream, &error) == HT_INTERNAL && strstr(error.text, "in the midst of a call") != NULL);
  CHECK(cu.StreamEndCapture(stream, &graph) == 0 && all.asked == 0);
  CHECK(ht_model_queue_placed(model, inputs, &seed, NULL, &all, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_model_queue_placed(model, inputs, &seed, place, &none, stream, &error) == HT_NO_MEMORY);
  CHECK(ht_model_run_placed(model, inputs, &seed, place, &first, &error) == HT_OK && first.asked == out); /* the legacy stream */
  CHECK(ht_model_queue_placed(model, inputs, &seed, place, &all, stream, &error) == HT_OK && all.asked == out);
  CHECK(cu.StreamSynchronize(NULL) == 0 && cu.StreamSynchronize(stream) == 0);
  FILE* file = fopen(argv[6], "wb");
  for (int i = 0; i < out; ++i) {
    static char other[ROOM];
    CHECK(all.bytes[i] == first.bytes[i] && cu.MemcpyDtoHAsync(host, (CUdeviceptr)(size_t)all.outputs[i].data, all.bytes[i], stream) == 0);
    CHECK(cu.MemcpyDtoHAsync(other, (CUdeviceptr)(size_t)first.outputs[i].data, all.bytes[i], stream) == 0 && cu.StreamSynchronize(stream) == 0);
    CHECK(memcmp(host, other, all.bytes[i]) == 0);
    fwrite(host, 1, all.bytes[i], file);
  }
  fclose(file);
  ht_model_trim(model);
  ht_pack_close(pack);
  CHECK(ht_model_queue_placed(model, inputs, &seed, place, &all, stream, &error) == HT_CLOSED);
  ht_model_free(model);
  puts("right");
  return 0;
}
