/* How evenly a call is shared: shares SPLIT N THREADS [NR TILES]... runs one of a region of TILES row tiles of five rows for each NR,
 * with kernels that count; SPLIT n or m, and 8 behind it where they have tails in steps of eight columns. Prints elements of Y: for each thread those of its own chunks, then those after which it was done when
 * whoever is done takes from the others. Exit 1 if an element was not written once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kinds/dense_run.c"

#define MR 5
#define K 1024
#define MOST 32768

static float x[MOST * K / 16], w[2048 * K], y[MOST];
static int written[MOST];
static long work; /* of the chunk */
static long own[HT_MAX_THREADS], done[HT_MAX_THREADS];

static int count(void* self, const TVMFFIAny* args, int32_t number, TVMFFIAny* result) {
  (void)self, (void)number, (void)result;
  const DLTensor* out = args[2].v_ptr;
  long first = ((long)out->data - (long)y) / (long)sizeof(float);
  int scratch = first < 0 || first >= MOST; /* of a tile that reaches past n: its columns are copied */
  work += out->shape[0] * out->shape[1];
  for (int64_t i = 0; i < out->shape[0]; ++i)
    for (int64_t j = 0; j < out->shape[1]; ++j) {
      ((float*)out->data)[i * out->strides[0] + j] = 1;
      if (!scratch) written[first + i * out->strides[0] + j]++;
    }
  return 0;
}

void ht_pool_run(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  int64_t next[HT_MAX_THREADS], end[HT_MAX_THREADS];
  for (int i = 0; i < threads; ++i) next[i] = chunks * i / threads, end[i] = chunks * (i + 1) / threads; /* as pool.c does */
  for (int64_t left = chunks; left > 0; --left) {
    int who = 0, from; /* who has done least goes on: own chunks first, then those of the others in turn */
    for (int i = 1; i < threads; ++i)
      if (done[i] < done[who]) who = i;
    for (from = who; next[from] == end[from];) from = (from + 1) % threads;
    work = 0;
    body(arg, next[from]++);
    done[who] += work;
    own[from] += work;
  }
}

int main(int argc, char** argv) {
  int64_t n = atol(argv[2]);
  int threads = atoi(argv[3]), parts = (argc - 4) / 2;
  ht_kernel kernels[HT_MAX_PARTS];
  ht_composition composition = {.count = parts, .split = argv[1][0] == 'n' ? HT_COLUMNS : HT_ROWS};
  int64_t rows = 0;
  for (int i = 0; i < parts; ++i) {
    kernels[i] = (ht_kernel){.name = "count", .fn = count, .mr = MR, .nr = atoi(argv[4 + 2 * i]), .pw = 16};
    if (argv[1][1] == '8') kernels[i].tail = count, kernels[i].nt = (int32_t)(n % kernels[i].nr + 7) / 8 * 8;
    composition.part[i] = (ht_part){&kernels[i], atol(argv[5 + 2 * i])};
    rows += MR * composition.part[i].tiles;
  }
  if (rows * n > MOST) return 2;
  const ht_dense op = {.n = n, .k = K, .pw = 16, .col_block = 1 << 20};
  const ht_dense_call call = {.x = x, .ldx = K, .w = w, .y = y, .ldy = n, .m = rows};
  if (ht_dense_run(&op, &composition, &call, threads) != 0) return 3;
  for (int64_t at = 0; at < rows * n; ++at)
    if (y[at] != 1 || written[at] > 1) return 1;
  if (threads == 1) own[0] = done[0] = work; /* no pool */
  for (int i = 0; i < threads; ++i) printf("%ld ", own[i]);
  for (int i = 0; i < threads; ++i) printf("%ld ", done[i]);
  return 0;
}
