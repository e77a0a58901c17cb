/* How evenly columns are shared: shares N THREADS NR... runs one call of a region of five rows for each NR, the first with the
 * most tiles, with kernels that count. Prints the multiply-adds a term of each thread; exit 1 if an element of Y was not written once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.c"

#define MR 5
#define K 64
#define MOST 32768

static float x[MOST], w[MOST * K], y[MOST];
static int written[MOST];
static long work[HT_MAX_THREADS];
static int thread;

static int count(void* self, const TVMFFIAny* args, int32_t number, TVMFFIAny* result) {
  (void)self, (void)number, (void)result;
  const DLTensor* out = args[2].v_ptr;
  long first = ((long)out->data - (long)y) / (long)sizeof(float);
  int scratch = first < 0 || first >= MOST; /* of a tile that reaches past n: its columns are copied */
  work[thread] += out->shape[0] * out->shape[1];
  for (int64_t i = 0; i < out->shape[0]; ++i)
    for (int64_t j = 0; j < out->shape[1]; ++j) {
      ((float*)out->data)[i * out->strides[0] + j] = 1;
      if (!scratch) written[first + i * out->strides[0] + j]++;
    }
  return 0;
}

/* Each thread its own chunks, as when nobody is late. */
void ht_pool_run(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    thread = (int)(chunk * threads / chunks);
    body(arg, chunk);
  }
  thread = 0;
}

int main(int argc, char** argv) {
  int64_t n = atol(argv[1]);
  int threads = atoi(argv[2]), parts = argc - 3;
  ht_kernel kernels[HT_MAX_PARTS];
  ht_composition composition = {.count = parts, .split = HT_COLUMNS};
  int64_t rows = 0;
  for (int i = 0; i < parts; ++i) {
    kernels[i] = (ht_kernel){.name = "count", .fn = count, .mr = MR, .nr = atoi(argv[3 + i]), .pw = 16};
    composition.part[i] = (ht_part){&kernels[i], 1};
    rows += MR;
  }
  if (rows * n > MOST) return 2;
  const ht_op op = {.name = "dense", .n = n, .k = K, .pw = 16, .col_block = 1 << 20};
  const ht_call call = {.x = x, .ldx = K, .w = w, .y = y, .ldy = n, .m = rows};
  if (ht_run(&op, &composition, &call, threads) != 0) return 3;
  for (int64_t at = 0; at < rows * n; ++at)
    if (y[at] != 1 || written[at] > 1) return 1;
  for (int i = 0; i < threads; ++i) printf("%ld ", work[i]);
  return 0;
}
