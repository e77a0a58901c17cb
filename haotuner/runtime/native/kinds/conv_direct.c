/* Depthwise convolutions: one channel makes each feature, so there is no sum over channels and nothing to lay out. */
#include <immintrin.h>

#include <string.h>

#include "conv.h"

#define HT_DIRECT_FLOATS 4096        /* of lines that are laid out for a tile: 24 of 44, or 16 of 4 parts of 32, at most */
#define HT_ROWS 8                    /* of the output, in a tile */
#define HT_DIRECT_TAPS 16            /* of a line: what ht_conv_is_direct lets through */

#define HT_DIRECT_PAIR 2             /* `mr` of kernels that take two pixels of four rows, channels last */
#define HT_DIRECT_ZEROS 32           /* two vectors */
static _Thread_local _Alignas(64) float room_memory[HT_DIRECT_FLOATS];

typedef struct { /* channels first: what is the same for all planes of a call */
  int taps, r, down, right, top, before;
  int program;                  /* which; -1: none is for such windows, and tiles have one row */
  int pairs, across;            /* every other element of a line as it lies; parts that a line is laid out as */
  int64_t rows, more;           /* of a tile; the first tiles that have a row more */
  int64_t length, span;         /* floats of a part: whole vectors; that a tile reads of a line that lies in the image */
  int64_t at[HT_DIRECT_TAPS];   /* of each tap along a line, how far it is from the first */
  int64_t laid[HT_DIRECT_TAPS]; /* the same where lines are laid out in parts */
  const float *begin, *end;     /* where elements of x lie */
  const float* zeros;           /* a line above or below the image */
  float* room;
} ht_direct_lines;

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  int64_t all, chunks; /* planes channels first; rows of all images, channels last */
  atomic_int failed;
} direct_job;

/* The epilogue of `rows` output rows from one on. */
static void finish(direct_job* j, ht_conv_part part, int64_t rows) {
  for (int64_t i = 0; i < rows && j->kernel->epilogue != NULL; ++i, ++part.p)
    if (ht_conv_finish(j->conv, j->kernel, j->call, &part) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* What the programs are made of, for each width of vectors:
 *
 * HT_V: a vector; HT_N: its lanes; HT_LOAD(p); HT_LANES(low, high): lanes [low, high), of type lanes_N; HT_PART(p, low, high): these
 * lanes and zeros; HT_STORE(p, v, n): the first n; HT_EVERY(p): a number in all lanes; HT_FMA(a, b, c). Of the lanes that
 * an image has, a sum is HT_FMA_OF(lanes, a, HT_ONLY(lanes, b), c). HT_EVEN(a, b), HT_ODD(a, b): every other element of both, in an
 * order that HT_IN_ORDER(v) mends, and in which HT_MIXED(low, high) are lanes. HT_STORE_OF(p, v, HT_SOME(tile)): a tile's columns. HT_UP_TO:
 * programs for tiles of up to so many rows, channels first. HT_IN_REGISTER(v): is in one from there on. */

#define HT_TARGET __attribute__((target("avx512f")))
#define HT_WIDE(name) name##_16
#define HT_N 16
#define HT_SPECIAL 1
#define HT_V __m512
#define HT_ZERO _mm512_setzero_ps()
#define HT_LOAD(p) _mm512_loadu_ps(p)
#define HT_LANES(low, high) ((__mmask16)(((1u << (high)) - 1) & ~((1u << (low)) - 1)))
#define HT_MIXED(low, high) HT_LANES(low, high)
#define HT_ONLY(lanes, v) (v)
#define HT_UP_TO HT_UP_TO_8
#define HT_PART(p, low, high) _mm512_maskz_loadu_ps(HT_LANES(low, high), p)
#define HT_STORE(p, v, n) _mm512_mask_storeu_ps(p, HT_LANES(0, n), v)
#define HT_SOME(tile) ((tile)->stored)
#define HT_STORE_OF(p, v, some) _mm512_mask_storeu_ps(p, some, v)
#define HT_EVERY(p) _mm512_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define HT_FMA_OF(lanes, a, b, c) _mm512_mask3_fmadd_ps(a, b, c, lanes)
#define HT_EVEN(a, b) _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b)
#define HT_ODD(a, b) _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b)
#define HT_IN_ORDER(v) (v)
#define HT_IN_REGISTER(a) __asm__("" : "+v"(a))
typedef __mmask16 lanes_16, some_16;
#include "conv_direct.h"
#include "conv_direct_first.h"
#undef HT_TARGET
#undef HT_WIDE
#undef HT_N
#undef HT_SPECIAL
#undef HT_MIXED
#undef HT_ONLY
#undef HT_UP_TO
#undef HT_V
#undef HT_ZERO
#undef HT_LOAD
#undef HT_LANES
#undef HT_PART
#undef HT_STORE
#undef HT_STORE_OF
#undef HT_SOME
#undef HT_EVERY
#undef HT_FMA
#undef HT_FMA_OF
#undef HT_EVEN
#undef HT_ODD
#undef HT_IN_REGISTER
#undef HT_IN_ORDER

#define HT_TARGET __attribute__((target("avx2,fma")))
#define HT_WIDE(name) name##_8
#define HT_N 8
#define HT_SPECIAL 1
#define HT_V __m256
#define HT_ZERO _mm256_setzero_ps()
#define HT_LOAD(p) _mm256_loadu_ps(p)
#define HT_LANES(low, high) _mm256_castsi256_ps(mask_8(low, high, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
#define HT_MIXED(low, high) _mm256_castsi256_ps(mask_8(low, high, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)))
#define HT_ONLY(lanes, v) _mm256_and_ps(lanes, v)
#define HT_UP_TO HT_UP_TO_8
#define HT_PART(p, low, high) _mm256_maskload_ps(p, _mm256_castps_si256(HT_LANES(low, high)))
#define HT_STORE(p, v, n) store_8(p, v, n)
#define HT_SOME(tile) ((tile)->count)
#define HT_STORE_OF(p, v, some) store_8(p, v, some)
#define HT_EVERY(p) _mm256_broadcast_ss(p)
#define HT_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define HT_FMA_OF(lanes, a, b, c) _mm256_fmadd_ps(a, b, c)
#define HT_EVEN(a, b) _mm256_shuffle_ps(a, b, 0x88) /* a0 a2 b0 b2 | a4 a6 b4 b6 */
#define HT_ODD(a, b) _mm256_shuffle_ps(a, b, 0xdd)
#define HT_IN_ORDER(v) _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8))
#define HT_IN_REGISTER(a) __asm__("" : "+x"(a))
typedef __m256 lanes_8;
typedef int64_t some_8;
HT_TARGET static inline __m256i mask_8(int64_t low, int64_t high, __m256i place) {
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)low), place), _mm256_cmpgt_epi32(_mm256_set1_epi32((int)high), place));
}
HT_TARGET static inline void store_8(float* p, __m256 v, int64_t n) {
  if (n == 8) _mm256_storeu_ps(p, v);
  else _mm256_maskstore_ps(p, _mm256_castps_si256(HT_LANES(0, n)), v);
}
#include "conv_direct.h"
#include "conv_direct_first.h"
#undef HT_TARGET
#undef HT_WIDE
#undef HT_N
#undef HT_SPECIAL
#undef HT_MIXED
#undef HT_ONLY
#undef HT_UP_TO
#undef HT_V
#undef HT_ZERO
#undef HT_LOAD
#undef HT_LANES
#undef HT_PART
#undef HT_STORE
#undef HT_STORE_OF
#undef HT_SOME
#undef HT_EVERY
#undef HT_FMA
#undef HT_FMA_OF
#undef HT_EVEN
#undef HT_ODD
#undef HT_IN_REGISTER
#undef HT_IN_ORDER

#define HT_TARGET
#define HT_WIDE(name) name##_4
#define HT_N 4
#define HT_SPECIAL 0
#define HT_V __m128
#define HT_ZERO _mm_setzero_ps()
#define HT_LOAD(p) _mm_loadu_ps(p)
#define HT_LANES(low, high) mask_4(low, high)
#define HT_MIXED(low, high) mask_4(low, high)
#define HT_ONLY(lanes, v) _mm_and_ps(lanes, v)
#define HT_UP_TO HT_UP_TO_4
#define HT_PART(p, low, high) part_4(p, low, high)
#define HT_STORE(p, v, n) store_4(p, v, n)
#define HT_SOME(tile) ((tile)->count)
#define HT_STORE_OF(p, v, some) store_4(p, v, some)
#define HT_EVERY(p) _mm_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define HT_FMA_OF(lanes, a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define HT_EVEN(a, b) _mm_shuffle_ps(a, b, 0x88)
#define HT_ODD(a, b) _mm_shuffle_ps(a, b, 0xdd)
#define HT_IN_ORDER(v) (v)
#define HT_IN_REGISTER(a) __asm__("" : "+x"(a))
typedef __m128 lanes_4;
typedef int64_t some_4;
static inline __m128 mask_4(int64_t low, int64_t high) {
  const __m128i place = _mm_setr_epi32(0, 1, 2, 3);
  return _mm_castsi128_ps(_mm_andnot_si128(_mm_cmpgt_epi32(_mm_set1_epi32((int)low), place), _mm_cmpgt_epi32(_mm_set1_epi32((int)high), place)));
}
static inline __m128 part_4(const float* p, int64_t low, int64_t high) {
  float lanes[4] = {0, 0, 0, 0};
  for (int64_t i = low; i < high; ++i) lanes[i] = p[i];
  return _mm_loadu_ps(lanes);
}
static inline void store_4(float* p, __m128 v, int64_t n) {
  float lanes[4];
  if (n == 4) _mm_storeu_ps(p, v);
  else {
    _mm_storeu_ps(lanes, v);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
}
#include "conv_direct.h"
#include "conv_direct_first.h"

static void reach_of(int64_t stride, int64_t extent, const float** begin, const float** end) {
  *(stride < 0 ? begin : end) += stride * (extent - 1);
}

static ht_direct_lines lines_for(const direct_job* j) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  static const _Alignas(64) float zeros[HT_DIRECT_ZEROS];
  ht_direct_lines of = {.taps = wide->taps, .r = tall->taps, .down = tall->stride, .right = wide->stride, .top = tall->before, .before = wide->before};
  of.pairs = tall->stride == 2 && wide->stride == 2 && wide->dilation == 1;
  if (of.r == 7 ? of.down == 1 : (of.r == 3 || of.r == 5) && (of.down == 1 || of.pairs)) of.program = of.r - 3 + (of.down == 2);
  else of.program = -1, of.pairs = 0;
  const int64_t registers = conv->lanes == 4 ? 4 : HT_ROWS, asked = j->kernel->mr < registers ? j->kernel->mr : registers;
  const int64_t most = of.program >= 0 ? asked : 1, tiles = (call->p + most - 1) / most;
  of.rows = tiles > 0 ? call->p / tiles : 0;
  of.more = tiles > 0 ? call->p % tiles : 0;
  of.across = of.pairs ? 1 : wide->stride;
  for (int u = 0; u < of.taps; ++u) {
    of.at[u] = (int64_t)u * wide->dilation;
    of.laid[u] = of.at[u] / of.across;
  }
  of.span = (1 + of.pairs) * conv->lanes + of.at[of.taps - 1];
  of.length = ((1 + of.pairs) * conv->lanes + of.laid[of.taps - 1] + conv->lanes - 1) / conv->lanes * conv->lanes;
  for (int u = 0; u < of.taps; ++u) of.laid[u] += of.at[u] % of.across * of.length;
  of.begin = call->x, of.end = call->x + 1;
  reach_of(call->xb, call->batch, &of.begin, &of.end);
  reach_of(call->xc, conv->channels, &of.begin, &of.end);
  reach_of(call->xh, call->h, &of.begin, &of.end);
  reach_of(1, call->w, &of.begin, &of.end);
  of.zeros = zeros;
  of.room = room_memory;
  return of;
}

static void run_planes(direct_job* j, int64_t first, int64_t last) {
  const ht_direct_lines lines = lines_for(j);
  (j->conv->lanes == 16 ? planes_16 : j->conv->lanes == 8 ? planes_8 : planes_4)(j, &lines, first, last);
}

static void run_rows(direct_job* j, int64_t first, int64_t last) {
  const ht_conv_call* call = j->call;
  int lanes = j->conv->lanes;
  for (int64_t at = first; at < last; ++at) {
    int64_t b = at / call->p, p = at % call->p;
    float* y = call->y + b * call->yb + p * call->yh;
    if (j->kernel->mr == HT_DIRECT_PAIR && at + 4 <= last && p + 4 <= call->p &&
        (lanes == 16 ? four_rows_16 : lanes == 8 ? four_rows_8 : four_rows_4)(call, j->conv, call->x + b * call->xb, call->weight, p, y)) {
      finish(j, (ht_conv_part){b, 0, p, 0, j->conv->features, call->q, 1}, 4);
      at += 3;
      continue;
    }
    (lanes == 16 ? row_16 : lanes == 8 ? row_8 : row_4)(call, j->conv, call->x + b * call->xb, call->weight, p, y, j->kernel->mr);
    finish(j, (ht_conv_part){b, 0, p, 0, j->conv->features, call->q, 1}, 1);
  }
}

static void run_chunk(void* arg, int64_t index) {
  direct_job* j = arg;
  int64_t first = j->all * index / j->chunks, last = j->all * (index + 1) / j->chunks;
  (j->conv->last ? run_rows : run_planes)(j, first, last);
}

int ht_conv_run_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads) {
  direct_job j = {.conv = conv, .kernel = kernel, .call = call, .all = call->batch * (conv->last ? call->p : conv->features), .chunks = 1};
  atomic_init(&j.failed, 0);
  if (threads > 1) {
    j.chunks = 4 * (int64_t)threads; /* enough for a free thread to help a late one */
    if (j.chunks > j.all) j.chunks = j.all;
    ht_pool_run(run_chunk, &j, j.chunks, threads);
  } else {
    run_chunk(&j, 0);
  }
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
