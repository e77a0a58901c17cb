/* A model of a pack on CUDA device 0 through haotuner.h: drive_models_on PACK NAME OUT BATCH SEQ asks for it twice, once captured, and
 * writes what the graph's replay answers to inputs 0, 1, 0, 1, …, all outputs one after the other. */
#include <string.h>

#include "on_device.h"

enum { ENDS = 8, ROOM = 1 << 16 };

static char host[ROOM];

static size_t bytes_of(const DLTensor* t) {
  size_t bytes = t->dtype.bits / 8;
  for (int a = 0; a < t->ndim; ++a) bytes *= (size_t)t->shape[a];
  return bytes;
}

static void* there(void* arg, int output, const DLTensor* wanted) {
  const DLTensor* own = (const DLTensor*)arg + output;
  CHECK(wanted->device.device_type == kDLCUDA && wanted->device.device_id == 0 && bytes_of(wanted) == bytes_of(own));
  return own->data;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_model* model;
  ht_model_end end;
  ht_model_held_t held;
  DLTensor inputs[ENDS], outputs[ENDS];
  CUstream stream;
  CUgraph graph;
  CUgraphExec ready;
  static int64_t shapes[ENDS][HT_MODEL_MAX_AXES], told[ENDS * HT_MODEL_MAX_AXES], *next = told;
  int in = 0, out = 0;
  CHECK(argc == 6);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK);
  enter_device();
  CHECK(ht_model_open(pack, argv[2], &model, &error) == HT_OK);
  CHECK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
  for (; ht_model_input(model, in, &end) == HT_OK; ++in) { /* all are (batch, seq) of int64 */
    shapes[in][0] = atoi(argv[4]), shapes[in][1] = atoi(argv[5]);
    for (int i = 0; i < ROOM / 8; ++i) ((int64_t*)(void*)host)[i] = i % 2;
    DLTensor like = {NULL, {kDLCUDA, 0}, 2, end.dtype, shapes[in], NULL, 0};
    inputs[in] = upload(host, bytes_of(&like), end.dtype, 2, shapes[in]);
  }
  CHECK(in == 2 && ht_model_shapes(model, inputs, told, &error) == HT_OK);
  for (; ht_model_output(model, out, &end) == HT_OK; ++out, next += end.ndim) {
    DLTensor like = {NULL, {kDLCUDA, 0}, end.ndim, end.dtype, next, NULL, 0};
    memset(host, 0xff, ROOM);
    CHECK(bytes_of(&like) <= ROOM);
    outputs[out] = upload(host, bytes_of(&like), end.dtype, end.ndim, next);
  }
  CHECK(cu.StreamSynchronize(NULL) == 0);
  CHECK(ht_model_run(model, inputs, outputs, &error) == HT_OK && cu.StreamSynchronize(NULL) == 0);
  CHECK(ht_model_queue(model, inputs, outputs, stream, &error) == HT_OK && cu.StreamSynchronize(stream) == 0);
  CHECK(ht_model_queue_placed(model, inputs, NULL, there, outputs, stream, &error) == HT_OK && cu.StreamSynchronize(stream) == 0);
  CHECK(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0);
  CHECK(ht_model_queue(model, inputs, outputs, stream, &error) == HT_OK);
  CHECK(cu.StreamEndCapture(stream, &graph) == 0 && cu.GraphInstantiate(&ready, graph, 0) == 0);
  for (int i = 0; i < out; ++i) CHECK(cu.MemsetD8Async((CUdeviceptr)(size_t)outputs[i].data, 0xff, bytes_of(&outputs[i]), stream) == 0);
  CHECK(cu.GraphLaunch(ready, stream) == 0 && cu.StreamSynchronize(stream) == 0);
  CHECK(ht_model_held(model, &held) == HT_OK && held.calls == 4 && held.contexts == 2 && held.packed_bytes > 0);
  DLTensor away = inputs[0];
  away.device.device_id = 1;
  inputs[0] = away;
  CHECK(ht_model_queue(model, inputs, outputs, stream, &error) == HT_BAD_TYPE && strstr(error.text, "on cuda:0, got int64 on cuda:1") != NULL);
  FILE* file = fopen(argv[3], "wb");
  for (int i = 0; i < out; ++i) {
    const size_t bytes = bytes_of(&outputs[i]);
    CHECK(cu.MemcpyDtoHAsync(host, (CUdeviceptr)(size_t)outputs[i].data, bytes, stream) == 0 && cu.StreamSynchronize(stream) == 0);
    fwrite(host, 1, bytes, file);
  }
  fclose(file);
  ht_pack_close(pack);
  CHECK(ht_model_queue(model, inputs, outputs, stream, &error) == HT_CLOSED);
  ht_model_free(model);
  puts("right");
  return 0;
}
