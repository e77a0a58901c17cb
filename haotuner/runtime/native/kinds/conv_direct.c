/* Depthwise convolutions: one channel makes each feature, so there is no sum over channels and nothing to lay out. */
#include <immintrin.h>

#include <string.h>

#include "conv.h"
#include "turn.h"

#define HT_DIRECT_FLOATS (24 * 1024) /* lines of one plane: twice the L1 of most server cores, since each is used at once */
#define HT_DIRECT_COLUMNS 256       /* of a strip of the output */
#define HT_DIRECT_TAPS 16            /* of a line: what ht_conv_is_direct lets through */

#define HT_MADE_FLOATS (8 * 1024)   /* of results before they are turned back */
#define CHANNELS_AT_ONCE 8           /* `mr` of the kernels that turn a vector of channels */

static _Thread_local _Alignas(64) float room_memory[HT_DIRECT_FLOATS], made_memory[HT_MADE_FLOATS];

#define HT_TARGET __attribute__((target("avx512f")))
#define HT_WIDE(name) name##_16
#define HT_N 16
#define HT_SPECIAL 1
#define HT_V __m512
#define HT_LOAD(p) _mm512_loadu_ps(p)
#define HT_BITS(low, high) ((__mmask16)(((1u << (high)) - 1) & ~((1u << (low)) - 1)))
#define HT_PART(p, low, high) _mm512_maskz_loadu_ps(HT_BITS(low, high), p)
#define HT_STORE(p, v, n) _mm512_mask_storeu_ps(p, HT_BITS(0, n), v)
#define HT_EVERY(p) _mm512_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define HT_EVEN(p, low, high) even_16(p, low, high)
HT_TARGET static inline __m512 even_16(const float* p, int64_t low, int64_t high) {
  const __m512i every_other = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  uint32_t bits = (uint32_t)((((uint64_t)1 << high) - 1) & ~(((uint64_t)1 << low) - 1));
  __m512 a = _mm512_maskz_loadu_ps((__mmask16)bits, p), b = _mm512_maskz_loadu_ps((__mmask16)(bits >> 16), p + 16);
  return _mm512_permutex2var_ps(a, every_other, b);
}
#include "conv_direct.h"
#undef HT_TARGET
#undef HT_WIDE
#undef HT_N
#undef HT_SPECIAL
#undef HT_V
#undef HT_LOAD
#undef HT_PART
#undef HT_STORE
#undef HT_EVERY
#undef HT_FMA
#undef HT_EVEN

#define HT_TARGET __attribute__((target("avx2,fma")))
#define HT_WIDE(name) name##_8
#define HT_N 8
#define HT_SPECIAL 1
#define HT_V __m256
#define HT_LOAD(p) _mm256_loadu_ps(p)
#define HT_PART(p, low, high) part_8(p, low, high)
#define HT_STORE(p, v, n) _mm256_maskstore_ps(p, lanes_8(0, n), v)
#define HT_EVERY(p) _mm256_broadcast_ss(p)
#define HT_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define HT_EVEN(p, low, high) even_8(p, low, high)
HT_TARGET static inline __m256i lanes_8(int64_t low, int64_t high) {
  const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)low), place), _mm256_cmpgt_epi32(_mm256_set1_epi32((int)high), place));
}
HT_TARGET static inline __m256 part_8(const float* p, int64_t low, int64_t high) { return _mm256_maskload_ps(p, lanes_8(low, high)); }
HT_TARGET static inline __m256 even_8(const float* p, int64_t low, int64_t high) {
  int64_t a_high = high < 8 ? high : 8, b_low = low > 8 ? low - 8 : 0, b_high = high > 8 ? high - 8 : 0;
  __m256 a = part_8(p, low < 8 ? low : 8, a_high), b = part_8(p + 8, b_low, b_high);
  __m256 mixed = _mm256_shuffle_ps(a, b, 0x88); /* a0 a2 b0 b2 | a4 a6 b4 b6 */
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
#include "conv_direct.h"
#undef HT_TARGET
#undef HT_WIDE
#undef HT_N
#undef HT_SPECIAL
#undef HT_V
#undef HT_LOAD
#undef HT_PART
#undef HT_STORE
#undef HT_EVERY
#undef HT_FMA
#undef HT_EVEN

#define HT_TARGET
#define HT_WIDE(name) name##_4
#define HT_N 4
#define HT_SPECIAL 0
#define HT_V __m128
#define HT_LOAD(p) _mm_loadu_ps(p)
#define HT_PART(p, low, high) part_4(p, low, high, 1)
#define HT_STORE(p, v, n) store_4(p, v, n)
#define HT_EVERY(p) _mm_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define HT_EVEN(p, low, high) part_4(p, low, high, 2)
static inline __m128 part_4(const float* p, int64_t low, int64_t high, int step) {
  float lanes[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i < 4; ++i)
    if (i * step >= low && i * step < high) lanes[i] = p[i * step];
  return _mm_loadu_ps(lanes);
}
static inline void store_4(float* p, __m128 v, int64_t n) {
  float lanes[4];
  _mm_storeu_ps(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
#include "conv_direct.h"

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  int64_t all, chunks; /* planes, or vectors of them, channels first; rows of all images, channels last */
  int turns;           /* channels first: a vector of channels at a time */
  atomic_int failed;
} direct_job;

/* The epilogue of `rows` output rows from one on. */
static void finish(direct_job* j, ht_conv_part part, int64_t rows) {
  for (int64_t i = 0; i < rows && j->kernel->epilogue != NULL; ++i, ++part.p)
    if (ht_conv_finish(j->conv, j->kernel, j->call, &part) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

static void run_planes(direct_job* j, int64_t first, int64_t last);

/* A vector of channels at a time. */
static void run_channels(direct_job* j, int64_t first, int64_t last) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  const int64_t lanes = conv->lanes, blocks = (conv->features + lanes - 1) / lanes, stride = ht_conv_direct_stride(conv);
  for (int64_t at = first; at < last; ++at) {
    const int64_t b = at / blocks, f = at % blocks * lanes, some = conv->features - f < lanes ? conv->features - f : lanes;
    const float *x = call->x + b * call->xb + f * call->xc, *bias = call->bias == NULL ? NULL : call->bias + f;
    if ((lanes == 16 ? channels_16 : lanes == 8 ? channels_8 : channels_4)(call, conv, x, call->weight + f * stride, bias,
                                                                           call->y + b * call->yb + f * call->yf, some, room_memory, made_memory) == 0)
      finish(j, (ht_conv_part){b, f, 0, 0, some, call->q, 1}, call->p);
    else run_planes(j, b * conv->features + f, b * conv->features + f + some);
  }
}

static void run_planes(direct_job* j, int64_t first, int64_t last) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  int64_t each = conv->features / conv->channels, stride = ht_conv_direct_stride(conv);
  for (int64_t at = first; at < last; ++at) {
    int64_t b = at / conv->features, f = at % conv->features;
    const float *x = call->x + b * call->xb + f / each * call->xc, *w = call->weight + f * stride;
    float* y = call->y + b * call->yb + f * call->yf;
    (conv->lanes == 16 ? plane_16 : conv->lanes == 8 ? plane_8 : plane_4)(call, conv, x, w, call->bias == NULL ? 0 : call->bias[f], y, j->kernel->mr,
                                                                            room_memory);
    finish(j, (ht_conv_part){b, f, 0, 0, 1, call->q, 1}, call->p);
  }
}

static void run_rows(direct_job* j, int64_t first, int64_t last) {
  const ht_conv_call* call = j->call;
  int lanes = j->conv->lanes;
  for (int64_t at = first; at < last; ++at) {
    int64_t b = at / call->p, p = at % call->p;
    float* y = call->y + b * call->yb + p * call->yh;
    (lanes == 16 ? row_16 : lanes == 8 ? row_8 : row_4)(call, j->conv, call->x + b * call->xb, call->weight, p, y, j->kernel->mr);
    finish(j, (ht_conv_part){b, 0, p, 0, j->conv->features, call->q, 1}, 1);
  }
}

static void run_chunk(void* arg, int64_t index) {
  direct_job* j = arg;
  int64_t first = j->all * index / j->chunks, last = j->all * (index + 1) / j->chunks;
  (j->conv->last ? run_rows : j->turns ? run_channels : run_planes)(j, first, last);
}

int ht_conv_run_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads) {
  direct_job j = {.conv = conv, .kernel = kernel, .call = call, .all = call->batch * (conv->last ? call->p : conv->features), .chunks = 1};
  j.turns = !conv->last && kernel->mr == CHANNELS_AT_ONCE && conv->features == conv->channels;
  if (j.turns) j.all = call->batch * ((conv->features + conv->lanes - 1) / conv->lanes);
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
