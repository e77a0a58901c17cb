/* Serve one op of a pack from C:  serve PACK OP THREADS M...   prints the largest error against a plain loop. */
#include <haotuner.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static DLTensor matrix(float* data, int64_t shape[2]) {
  DLTensor t = {data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}; /* strides NULL: compact */
  return t;
}

static int stop(const char* what, const ht_error* error) {
  fprintf(stderr, "%s: %s (%d)\n", what, error->text, (int)error->code);
  return 1;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  long long n, k;
  if (argc < 5 || sscanf(argv[2], "dense_n%lld_k%lld", &n, &k) != 2) {
    fprintf(stderr, "usage: serve PACK dense_n<N>_k<K> THREADS M...\n");
    return 2;
  }
  if (ht_abi_version() != HT_ABI_VERSION) return 3;
  if (ht_pack_open(argv[1], atoi(argv[3]), &pack, &error) != HT_OK) return stop("open", &error);
  if (ht_op_find(pack, argv[2], &op, &error) != HT_OK) return stop("find", &error);
  float* w = malloc((size_t)(n * k) * sizeof *w);
  float* b = malloc((size_t)n * sizeof *b);
  for (long long i = 0; i < n * k; ++i) w[i] = (float)((i * 37 % 101) - 50) / 50.0f;
  for (long long i = 0; i < n; ++i) b[i] = (float)i;
  int64_t w_shape[2] = {n, k}, b_shape[1] = {n};
  DLTensor weight = matrix(w, w_shape), bias = {b, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, b_shape, NULL, 0};
  if (ht_bind(op, &weight, &bias, &linear, &error) != HT_OK) return stop("bind", &error);
  double worst = 0;
  for (int a = 4; a < argc; ++a) {
    int64_t m = atoll(argv[a]), x_shape[2] = {m, k}, y_shape[2] = {m, n};
    float* x = malloc((size_t)(m * k + 1) * sizeof *x);
    float* y = malloc((size_t)(m * n + 1) * sizeof *y);
    for (int64_t i = 0; i < m * k; ++i) x[i] = (float)((i * 53 % 89) - 44) / 44.0f;
    DLTensor tx = matrix(x, x_shape), ty = matrix(y, y_shape);
    if (ht_call(linear, &tx, &ty, NULL, &error) != HT_OK) return stop("call", &error);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = b[j];
        for (int64_t t = 0; t < k; ++t) sum += (double)x[i * k + t] * w[j * k + t];
        worst = fmax(worst, fabs(sum - y[i * n + j]));
      }
    free(x);
    free(y);
  }
  ht_counts_t counts;
  ht_stats(op, &counts);
  printf("calls=%lld out_of_range=%lld worst=%.3g\n", (long long)counts.calls, (long long)counts.out_of_range, worst);
  ht_linear_free(linear);
  ht_pack_close(pack);
  free(w);
  free(b);
  return worst < 1e-3 ? 0 : 4;
}
