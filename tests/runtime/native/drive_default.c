/* Defaults of a model's inputs through haotuner.h: drive_default PACK NAME. Says them, and runs x = (1, 1) with them; the first output. */
#include <stdio.h>
#include <stdlib.h>

#include "haotuner.h"

static float first[16];

static void* place(void* arg, int output, const DLTensor* wanted) {
  (void)arg, (void)wanted;
  return output == 0 ? (void*)first : malloc(256);
}

int main(int argc, char** argv) {
  ht_error error = {HT_OK, ""};
  ht_pack* pack;
  ht_model* model;
  ht_model_end end;
  DLTensor inputs[3];
  float x[2] = {1, 1};
  int64_t shape[2] = {1, 2};
  if (argc != 3) return 2;
  if (ht_pack_open(argv[1], 1, &pack, &error) != HT_OK || ht_model_open(pack, argv[2], &model, &error) != HT_OK) return printf("%s\n", error.text), 1;
  for (int i = 0; i < 4; ++i) {
    const char* name = ht_model_input(model, i, &end) == HT_OK ? end.name : "beyond";
    DLTensor value;
    if (ht_model_input_default(model, i, &value) != HT_OK) {
      printf("%s has none\n", name);
      if (i == 0) inputs[0] = (DLTensor){x, {kDLCPU, 0}, 2, end.dtype, shape, NULL, 0};
      continue;
    }
    inputs[i] = value;
    int64_t count = 1;
    printf("%s", name);
    for (int a = 0; a < value.ndim; ++a) count *= value.shape[a], printf(" %d", (int)value.shape[a]);
    printf(":");
    for (int64_t k = 0; k < count; ++k) printf(" %g", (double)((float*)value.data)[k]);
    printf("\n");
  }
  if (ht_model_run_placed(model, inputs, NULL, place, NULL, &error) != HT_OK) return printf("%s\n", error.text), 1;
  printf("y: %g %g\n", (double)first[0], (double)first[1]);
  ht_model_free(model);
  ht_pack_close(pack);
  return 0;
}
