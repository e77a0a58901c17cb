/* A model through haotuner.h, as a C server calls it: drive_models PACK NAME THREADS OUT DIM... writes what the model answers to
 * inputs of 0, 1/8, 2/8, … 7/8, 0, … (whole numbers: 0, 1, 0, …), all outputs one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "haotuner.h"

enum { ENDS = 16 };

static int64_t elements(const DLTensor* t) {
  int64_t count = 1;
  for (int a = 0; a < t->ndim; ++a) count *= t->shape[a];
  return count;
}

static void make(DLTensor* t, const ht_model_end* end, int64_t* shape) {
  *t = (DLTensor){NULL, {kDLCPU, 0}, end->ndim, end->dtype, shape, NULL, 0};
  int64_t count = elements(t);
  t->data = calloc((size_t)count + 1, end->dtype.bits / 8);
  for (int64_t i = 0; i < count; ++i) {
    if (end->dtype.code == kDLFloat) ((float*)t->data)[i] = (float)(i % 8) / 8;
    else ((int64_t*)t->data)[i] = i % 2;
  }
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  ht_error error;
  ht_pack* pack;
  ht_model* model;
  ht_model_end end;
  DLTensor inputs[ENDS], outputs[ENDS];
  static int64_t shapes[2 * ENDS][HT_MODEL_MAX_AXES], told[ENDS * HT_MODEL_MAX_AXES];
  int64_t dims[ENDS] = {0}, bytes, *next = told;
  int in = 0, out = 0, given = argc - 5;
  if (ht_pack_open(argv[1], atoi(argv[3]), &pack, &error) != HT_OK) return printf("%s\n", error.text), 1;
  if (ht_model_open(pack, argv[2], &model, &error) != HT_OK) return printf("%d %s\n", error.code, error.text), ht_pack_close(pack), 1;
  for (int i = 0; ht_model_dim(model, i) != NULL; ++i) dims[i] = i < given ? atoll(argv[5 + i]) : 1;
  for (; ht_model_input(model, in, &end) == HT_OK; ++in) {
    for (int a = 0; a < end.ndim; ++a) {
      shapes[in][a] = end.extents[a];
      for (int i = 0; end.dims[a] != NULL && i < ENDS; ++i)
        if (ht_model_dim(model, i) != NULL && strcmp(ht_model_dim(model, i), end.dims[a]) == 0) shapes[in][a] = dims[i];
    }
    make(&inputs[in], &end, shapes[in]);
  }
  if (ht_model_memory(model, dims, &bytes, &error) != HT_OK || ht_model_shapes(model, inputs, told, &error) != HT_OK) return printf("%s\n", error.text), 1;
  for (; ht_model_output(model, out, &end) == HT_OK; ++out) {
    memcpy(shapes[ENDS + out], next, (size_t)end.ndim * sizeof *next);
    next += end.ndim;
    make(&outputs[out], &end, shapes[ENDS + out]);
  }
  ht_pack_close(pack); /* later calls are refused, the model keeps the code */
  ht_status refused = ht_model_run(model, inputs, outputs, &error);
  ht_model_free(model);
  if (refused != HT_CLOSED || ht_pack_open(argv[1], atoi(argv[3]), &pack, &error) != HT_OK || ht_model_open(pack, argv[2], &model, &error) != HT_OK) return 1;
  for (int i = 0; i < 2; ++i)
    if (ht_model_run(model, inputs, outputs, &error) != HT_OK) return printf("%s\n", error.text), 1;
  ht_model_held_t held;
  ht_model_held(model, &held);
  inputs[0].ndim -= 1;
  ht_status rank = ht_model_run(model, inputs, outputs, &error);
  printf("models=%d first=%s calls=%d plans=%d memory=%d rank=%d %s\n", ht_model_count(pack), ht_model_name(pack, 0), (int)held.calls, (int)held.plans,
         held.arena_bytes >= bytes, rank, error.text);
  FILE* file = fopen(argv[4], "wb");
  for (int i = 0; i < out; ++i) fwrite(outputs[i].data, outputs[i].dtype.bits / 8, (size_t)elements(&outputs[i]), file);
  fclose(file);
  inputs[0].ndim += 1;
  if (bytes > 1 && (ht_model_limit(model, 1, &error) != HT_OK || ht_model_run(model, inputs, outputs, &error) != HT_BAD_VALUE || strstr(error.text, "send a smaller one") == NULL ||
      ht_model_limit(model, -1, &error) != HT_BAD_VALUE || ht_model_limit(model, 0, &error) != HT_OK))
    return printf("%s\n", error.text), 1;
  for (int i = 0; i < in; ++i) free(inputs[i].data);
  for (int i = 0; i < out; ++i) free(outputs[i].data);
  ht_model_free(model);
  ht_pack_close(pack);
  return 0;
}
