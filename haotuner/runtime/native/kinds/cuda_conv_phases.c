/* Transposed convolutions on CUDA as ordinary windows, one for each residue of the results' places (device/phases.cuh); one launch. */
#include <string.h>

#include "cuda/workspace.h"
#include "cuda_conv.h"

static int32_t common(int32_t a, int32_t b) { return b == 0 ? a : common(b, a % b); }

/* Results 0.. of `out` at place, place + stride, ... see taps first_tap, first_tap + apart, ...; result j sees rows j - before, then backwards. */
typedef struct {
  ht_cuda_phase phase;
  int32_t first_tap, apart;
} residue;

static residue residue_of(const ht_window* side, int32_t place, int64_t out) {
  const int32_t stride = side->stride, apart = stride / common(stride, side->dilation);
  residue found = {{.count = place < out ? (int32_t)((out - 1 - place) / stride + 1) : 0}, 0, apart};
  int32_t tap = 0;
  while (tap < apart && ((int64_t)place + side->before - (int64_t)tap * side->dilation) % stride != 0) ++tap;
  if (tap == apart || tap >= side->taps) return found; /* no tap reaches them */
  found.first_tap = tap;
  found.phase.taps = (side->taps - 1 - tap) / apart + 1;
  found.phase.before = (int32_t)(((int64_t)tap * side->dilation - place - side->before) / stride);
  return found;
}

/* Of all residues of a side, and how many taps come before each. */
static int residues_of(const ht_window* side, int64_t out, residue* found) {
  for (int32_t place = 0, taps = 0; place < side->stride; taps += found[place++].phase.taps) {
    found[place] = residue_of(side, place, out);
    found[place].phase.first = taps;
  }
  return side->stride;
}

int ht_cuda_turn_phases(const ht_conv* conv, const ht_cuda_bound_conv* bound, uint8_t dtype, void* turned, CUstream stream, ht_error* error) {
  residue tall[HT_CUDA_PHASES], wide[HT_CUDA_PHASES];
  const int64_t element = ht_cuda_bytes(dtype), features = conv->features / conv->groups, channels = conv->channels / conv->groups;
  const int64_t all = (int64_t)conv->tall.taps * conv->wide.taps;
  const int32_t piece = (int32_t)(16 / element);
  const int down = residues_of(&conv->tall, 0, tall), right = residues_of(&conv->wide, 0, wide);
  int rc = 0;
  for (int at = 0; at < down * right * conv->groups && rc == 0; ++at) {
    const int group = at % conv->groups;
    const residue *y = &tall[at / conv->groups / right], *x = &wide[at / conv->groups % right];
    const int64_t taps = (int64_t)y->phase.taps * x->phase.taps, ahead = (int64_t)y->phase.first * conv->wide.taps + (int64_t)y->phase.taps * x->phase.first;
    if (taps == 0) continue;
    const int64_t from = group * channels * features * all + (int64_t)y->first_tap * conv->wide.taps + x->first_tap;
    const int64_t to = (ahead * conv->groups + group * taps) * features * channels;
    const ht_cuda_unfold unfold = {.x = (const char*)bound->w + from * element, .columns = (char*)turned + to * element, .xb = all,
                                   .xc = (int64_t)y->apart * conv->wide.taps, .xh = x->apart, .xw = features * all, .pixels = features, .h = x->phase.taps,
                                   .w = (int32_t)channels, .p = 1, .q = 1, .channels = y->phase.taps, .groups = 1, .r = x->phase.taps, .s = (int32_t)channels,
                                   .down = 1, .right = 1, .dilation_down = 1, .dilation_right = 1, .stored = taps * channels % piece == 0 ? piece : 1};
    rc = ht_cuda_launch_unfold(bound->loaded->unfolds[dtype], &unfold, bound->loaded->device->units, stream, error);
  }
  return rc;
}

int64_t ht_cuda_tell_phases(const ht_conv* conv, const ht_cuda_windows* windows, int64_t images, int64_t p, int64_t q, ht_cuda_phases* told) {
  residue tall[HT_CUDA_PHASES], wide[HT_CUDA_PHASES];
  const int down = residues_of(&conv->tall, p, tall), right = residues_of(&conv->wide, q, wide);
  memset(told, 0, sizeof *told);
  told->windows = *windows;
  told->windows.down = told->windows.right = 1;
  told->windows.dilation_down = -(conv->tall.dilation / common(conv->tall.stride, conv->tall.dilation));
  told->windows.dilation_right = -(conv->wide.dilation / common(conv->wide.stride, conv->wide.dilation));
  told->images = (int32_t)images, told->p = (int32_t)p, told->q = (int32_t)q, told->down = down, told->right = right, told->taps_right = conv->wide.taps;
  for (int i = 0; i < down; ++i) told->tall[i] = tall[i].phase;
  for (int i = 0; i < right; ++i) told->wide[i] = wide[i].phase;
  return images * tall[0].phase.count * wide[0].phase.count; /* none has more results than the first */
}
