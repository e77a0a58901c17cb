/* A model whose sizes depend on data through haotuner.h, in one call: drive_chain PACK NAME ROWS LENGTH SEED OUT. x (ROWS, 8) holds
 * -5/4, -4/4, ... 5/4 again and again, every whole number is LENGTH. Writes all outputs one after the other. */
#include <stdio.h>
#include <stdlib.h>

#include "haotuner.h"

static void* blocks[16];
static int64_t bytes[16];

static void* place(void* arg, int output, const DLTensor* wanted) {
  bytes[output] = wanted->dtype.bits / 8;
  for (int a = 0; a < wanted->ndim; ++a) bytes[output] *= wanted->shape[a];
  if (*(int*)arg == output) return NULL; /* the caller has no memory for this one */
  return blocks[output] = malloc((size_t)bytes[output] + 1);
}

int main(int argc, char** argv) {
  ht_error error = {HT_OK, ""};
  ht_pack* pack;
  ht_model* model;
  ht_model_end end;
  DLTensor inputs[8];
  int64_t shapes[8][HT_MODEL_MAX_AXES];
  int in = 0, none = -1;
  if (argc != 7) return 2;
  if (ht_pack_open(argv[1], 1, &pack, &error) != HT_OK || ht_model_open(pack, argv[2], &model, &error) != HT_OK) return printf("%s\n", error.text), 1;
  for (; ht_model_input(model, in, &end) == HT_OK; ++in) {
    int64_t count = 1;
    for (int a = 0; a < end.ndim; ++a) count *= shapes[in][a] = end.extents[a] < 0 ? atoll(argv[3]) : end.extents[a];
    inputs[in] = (DLTensor){calloc((size_t)count + 1, 8), {kDLCPU, 0}, end.ndim, end.dtype, shapes[in], NULL, 0};
    for (int64_t i = 0; i < count; ++i) {
      if (end.dtype.code == kDLFloat) ((float*)inputs[in].data)[i] = (float)(i % 11 - 5) / 4;
      else ((int64_t*)inputs[in].data)[i] = atoll(argv[4]);
    }
  }
  uint64_t seed = strtoull(argv[5], NULL, 10);
  int64_t told[64], memory = 0, dims[16] = {3, 3, 3, 3};
  printf("run=%d ", ht_model_run(model, inputs, inputs, &error));
  printf("shapes=%d ", ht_model_shapes(model, inputs, told, &error));
  printf("memory=%d ", ht_model_memory(model, dims, &memory, &error) == HT_OK && memory > 0);
  int last = 0;
  printf("none=%d ", ht_model_run_placed(model, inputs, &seed, place, &last, &error));
  for (int i = 0; i < 16; ++i) free(blocks[i]), blocks[i] = NULL;
  if (ht_model_run_placed(model, inputs, &seed, place, &none, &error) != HT_OK) return printf("%s\n", error.text), 1;
  ht_model_held_t held;
  ht_model_held(model, &held);
  printf("calls=%d arena=%d\n", (int)held.calls, held.arena_bytes > 0);
  FILE* file = fopen(argv[6], "wb");
  for (int i = 0; i < 16; ++i)
    if (blocks[i] != NULL) fwrite(blocks[i], 1, (size_t)bytes[i], file);
  fclose(file);
  for (int i = 0; i < 16; ++i) free(blocks[i]);
  for (int i = 0; i < in; ++i) free(inputs[i].data);
  ht_model_trim(model);
  ht_model_free(model);
  ht_pack_close(pack);
  return 0;
}
