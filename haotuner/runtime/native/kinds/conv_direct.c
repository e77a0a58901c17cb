/* Depthwise convolutions in fp32: one channel makes each feature, so there is no sum over channels and nothing to lay out. */
#include "conv_direct.h"

#define ZEROS 32 /* two vectors */


void ht_direct_finish(ht_direct_job* j, ht_conv_part part, int64_t rows) {
  const ht_conv_call* call = j->call;
  int joined = part.pixels == call->q && call->yh == call->q * call->yw; /* rows follow one another here and in all that is read: one row */
  for (int e = 0; e < call->extras; ++e) joined = joined && call->extra[e].sh == call->q * call->extra[e].sw;
  if (joined) part.pixels *= rows, rows = 1;
  for (int64_t i = 0; i < rows && j->kernel->epilogue != NULL; ++i, ++part.p)
    if (ht_conv_finish(j->conv, j->kernel, call, &part) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

static void reach_of(int64_t stride, int64_t extent, const char** begin, const char** end) {
  *(stride < 0 ? begin : end) += stride * (extent - 1);
}

ht_direct_lines ht_direct_lines_of(const ht_conv* conv, const ht_conv_call* call, int64_t most, int64_t size) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  static const _Alignas(64) float zeros[ZEROS];
  ht_direct_lines of = {.taps = wide->taps, .r = tall->taps, .down = tall->stride, .right = wide->stride, .top = tall->before, .before = wide->before};
  of.pairs = tall->stride == 2 && wide->stride == 2 && wide->dilation == 1;
  of.program = ht_direct_is_tiled(conv) ? of.r - 3 + (of.down == 2) : -1;
  if (of.program < 0) of.pairs = 0, most = 1;
  of.tiles = (call->p + most - 1) / most;
  of.rows = of.tiles > 0 ? call->p / of.tiles : 0;
  of.more = of.tiles > 0 ? call->p % of.tiles : 0;
  of.across = of.pairs ? 1 : wide->stride;
  for (int u = 0; u < of.taps; ++u) {
    of.at[u] = (int64_t)u * wide->dilation;
    of.laid[u] = of.at[u] / of.across;
  }
  of.span = (1 + of.pairs) * conv->lanes + of.at[of.taps - 1];
  of.length = ((1 + of.pairs) * conv->lanes + of.laid[of.taps - 1] + conv->lanes - 1) / conv->lanes * conv->lanes;
  for (int u = 0; u < of.taps; ++u) of.laid[u] += of.at[u] % of.across * of.length;
  of.begin = (const char*)call->x, of.end = of.begin + size;
  reach_of(call->xb * size, call->batch, &of.begin, &of.end);
  reach_of(call->xc * size, conv->channels, &of.begin, &of.end);
  reach_of(call->xh * size, call->h, &of.begin, &of.end);
  reach_of(call->xw * size, call->w, &of.begin, &of.end);
  of.zeros = zeros;
  of.room = ht_direct_rooms()->lines;
  return of;
}

void ht_direct_taps_of(const ht_direct_lines* of, const ht_conv_call* call, ht_direct_taps* met) {
  const int64_t by = of->taps > 1 ? of->at[1] : 1;
  for (int64_t q = 0; q < call->q; ++q) {
    const int64_t left = q * of->right - of->before, skipped = left < 0 ? (by - 1 - left) / by : 0, column = left + skipped * by;
    const int64_t meet = column < call->w ? (call->w - 1 - column) / by + 1 : 0, rest = of->taps > skipped ? of->taps - skipped : 0;
    met[q] = (ht_direct_taps){(int32_t)skipped, (int32_t)(meet < rest ? meet : rest), column};
  }
}

int ht_direct_is_small(const ht_conv* conv, const ht_conv_call* call) {
  if (conv->last || conv->features != conv->channels || !ht_direct_is_tiled(conv) || call->xw != 1) return 0;
  if (call->h * call->w > HT_DIRECT_SMALL || call->p * call->q > HT_DIRECT_OUTPUT) return 0;
  /* Sixteenths of vectors that lines fill for as much to be gained by them as by channels, measured: stores of a part cost most by 8 lanes,
   * and by 4 there are registers for few rows. Decision 659 has the numbers. */
  const int64_t lanes = conv->lanes, even = lanes >= 16 ? 12 : lanes >= 8 ? 16 : 18;
  return 16 * call->q * ceil_div(conv->channels, lanes) < even * ceil_div(call->q, lanes) * conv->channels;
}

static void run_chunk(void* arg, int64_t index) {
  ht_direct_job* j = arg;
  ((ht_direct_fn)(void (*)(void))j->kernel->fn)(j, j->all * index / j->chunks, j->all * (index + 1) / j->chunks); /* as conv_direct_16.c etc. say */
}

int ht_conv_run_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads) {
  ht_direct_job j = {.conv = conv, .kernel = kernel, .call = call, .chunks = 1};
  j.lanes = ht_direct_is_small(conv, call);
  j.all = call->batch * (conv->last ? call->p : j.lanes ? ceil_div(conv->features, conv->lanes) : conv->features);
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
