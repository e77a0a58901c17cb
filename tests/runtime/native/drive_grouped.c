/* A grouped op of a pack on CUDA device 0 through haotuner.h: drive_grouped PACK grouped_n<N>_k<K>_g<G>. Prints the largest error. */
#define _GNU_SOURCE
#include "on_device.h"

int main(int argc, char** argv) {
  const DLDataType int32 = {kDLInt, 32, 1};
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  long long n, k, g;
  CHECK(argc == 3 && sscanf(argv[2], "grouped_n%lld_k%lld_g%lld", &n, &k, &g) == 3 && g <= 64);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK && ht_op_find(pack, argv[2], &op, &error) == HT_OK);
  enter_device();
  const int64_t m = 77;
  float *w = malloc((size_t)(g * n * k) * 4), *b = malloc((size_t)(g * n) * 4), *x = malloc((size_t)(m * k) * 4), *y = malloc((size_t)(m * n) * 4);
  for (long long i = 0; i < g * n * k; ++i) w[i] = (float)((i * 37 % 101) - 50) / 50.0f;
  for (long long i = 0; i < g * n; ++i) b[i] = (float)(i % 7);
  for (int64_t i = 0; i < m * k; ++i) x[i] = (float)((i * 53 % 89) - 44) / 44.0f;
  int64_t w_shape[3] = {g, n, k}, b_shape[2] = {g, n}, x_shape[2] = {m, k}, y_shape[2] = {m, n}, e_shape[1] = {g};
  DLTensor weight = upload(w, (size_t)(g * n * k) * 4, fp32, 3, w_shape), bias = upload(b, (size_t)(g * n) * 4, fp32, 2, b_shape);
  DLTensor tx = upload(x, (size_t)(m * k) * 4, fp32, 2, x_shape), ty = upload(NULL, (size_t)(m * n) * 4, fp32, 2, y_shape);
  CHECK(ht_bind(op, &weight, &bias, &linear, &error) == HT_OK && ht_prepare(linear, NULL, &error) == HT_OK);
  CHECK(ht_call(linear, &tx, &ty, NULL, &error) == HT_BAD_TYPE); /* it wants offsets */
  double worst = 0;
  for (int cut = 0; cut < 3; ++cut) { /* even, all rows in the last group, every second group empty */
    int32_t ends[64];
    for (int i = 0; i < g; ++i) ends[i] = (int32_t)(cut == 0 ? m * (i + 1) / g : cut == 1 ? (i + 1 == g ? m : 0) : m * (i / 2 + 1) / ((g + 1) / 2));
    DLTensor offsets = upload(ends, (size_t)g * 4, int32, 1, e_shape);
    CHECK(ht_call_grouped(linear, &tx, NULL, &ty, NULL, &error) == HT_BAD_VALUE);
    CHECK(ht_call_grouped(linear, &tx, &bias, &ty, NULL, &error) == HT_BAD_TYPE);
    CHECK(ht_call_grouped(linear, &tx, &offsets, &ty, NULL, &error) == HT_OK);
    CHECK(cu.StreamSynchronize(NULL) == 0 && cu.MemcpyDtoHAsync(y, (CUdeviceptr)(size_t)ty.data, (size_t)(m * n) * 4, NULL) == 0);
    CHECK(cu.StreamSynchronize(NULL) == 0);
    for (int64_t i = 0, group = 0; i < m; ++i) {
      while (i >= ends[group]) ++group;
      for (int64_t j = 0; j < n; ++j) {
        double sum = b[group * n + j];
        for (int64_t t = 0; t < k; ++t) sum += (double)x[i * k + t] * w[(group * n + j) * k + t];
        worst = fmax(worst, fabs(sum - y[i * n + j]));
      }
    }
  }
  printf("worst=%.3g\n", worst);
  ht_pack_close(pack);
  CHECK(ht_call_grouped(linear, &tx, &bias, &ty, NULL, &error) == HT_CLOSED);
  ht_linear_free(linear);
  free(w), free(b), free(x), free(y);
  return worst < 1e-3 ? 0 : 4;
}
