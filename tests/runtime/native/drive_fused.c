/* act(x w^T + bias + residual) with GELU, of a pack on CUDA device 0 through haotuner.h: drive_fused PACK dense_n<N>_k<K>_bias_residual_gelu.
 * Prints the largest error. */
#define _GNU_SOURCE
#include "on_device.h"

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  long long n, k;
  CHECK(argc == 3 && sscanf(argv[2], "dense_n%lld_k%lld_bias_residual_gelu", &n, &k) == 2);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK && ht_op_find(pack, argv[2], &op, &error) == HT_OK);
  enter_device();
  const int64_t m = 37;
  float *w = malloc((size_t)(n * k) * 4), *b = malloc((size_t)n * 4), *x = malloc((size_t)(m * k) * 4), *y = malloc((size_t)(m * n) * 4);
  float* r = malloc((size_t)(m * n) * 4);
  for (long long i = 0; i < n * k; ++i) w[i] = (float)((i * 37 % 101) - 50) / 50.0f;
  for (long long i = 0; i < n; ++i) b[i] = (float)(i % 7) - 3;
  for (int64_t i = 0; i < m * k; ++i) x[i] = (float)((i * 53 % 89) - 44) / 44.0f;
  for (int64_t i = 0; i < m * n; ++i) r[i] = (float)(i % 5) - 2;
  int64_t w_shape[2] = {n, k}, b_shape[1] = {n}, x_shape[2] = {m, k}, y_shape[2] = {m, n};
  DLTensor weight = upload(w, (size_t)(n * k) * 4, fp32, 2, w_shape), bias = upload(b, (size_t)n * 4, fp32, 1, b_shape);
  DLTensor tx = upload(x, (size_t)(m * k) * 4, fp32, 2, x_shape), ty = upload(NULL, (size_t)(m * n) * 4, fp32, 2, y_shape);
  DLTensor residual = upload(r, (size_t)(m * n) * 4, fp32, 2, y_shape);
  const DLTensor *constants[1] = {&bias}, *inputs[1] = {&residual}, *nothing[1] = {NULL};
  CHECK(ht_bind(op, &weight, NULL, &linear, &error) == HT_BAD_VALUE); /* its epilogue adds a bias */
  CHECK(ht_bind_fused(op, &weight, constants, 0, &linear, &error) == HT_BAD_VALUE);
  CHECK(ht_bind_fused(op, &weight, nothing, 1, &linear, &error) == HT_BAD_VALUE);
  CHECK(ht_bind_fused(op, &weight, constants, 1, &linear, &error) == HT_OK && ht_prepare(linear, NULL, &error) == HT_OK);
  CHECK(ht_call(linear, &tx, &ty, NULL, &error) == HT_BAD_TYPE); /* it wants a residual */
  CHECK(ht_call_fused(linear, &tx, inputs, 0, &ty, NULL, &error) == HT_BAD_VALUE);
  CHECK(ht_call_fused(linear, &tx, nothing, 1, &ty, NULL, &error) == HT_BAD_VALUE);
  CHECK(ht_call_fused(linear, &tx, constants, 1, &ty, NULL, &error) == HT_BAD_VALUE);
  CHECK(ht_call_fused(linear, &tx, inputs, 1, &ty, NULL, &error) == HT_OK);
  CHECK(cu.StreamSynchronize(NULL) == 0 && cu.MemcpyDtoHAsync(y, (CUdeviceptr)(size_t)ty.data, (size_t)(m * n) * 4, NULL) == 0);
  CHECK(cu.StreamSynchronize(NULL) == 0);
  double worst = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = b[j] + r[i * n + j];
      for (int64_t t = 0; t < k; ++t) sum += (double)x[i * k + t] * w[j * k + t];
      worst = fmax(worst, fabs(0.5 * sum * (1 + erf(sum * 0.70710678118654752)) - y[i * n + j]));
    }
  printf("worst=%.3g\n", worst);
  ht_pack_close(pack);
  CHECK(ht_call_fused(linear, &tx, inputs, 1, &ty, NULL, &error) == HT_CLOSED);
  ht_linear_free(linear);
  free(w), free(b), free(x), free(y), free(r);
  return worst < 1e-4 ? 0 : 4;
}
