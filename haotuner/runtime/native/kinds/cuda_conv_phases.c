/* Transposed convolutions on CUDA as ordinary windows, one for each residue of the results' places (device/phases.cuh); one launch. */
#include <string.h>

#include "cuda/workspace.h"
#include "cuda_conv.h"

typedef struct { /* its outputs j see rows at + j, then backwards */
  ht_side side;
  int64_t ahead; /* taps of the residues before it */
} residue;

static int residues_of(const ht_window* w, int64_t out, residue* found) {
  int64_t taps = 0;
  for (int place = 0; place < w->stride; taps += found[place++].side.taps) found[place] = (residue){ht_conv_residue(w, place, out), taps};
  return w->stride;
}

static ht_cuda_phase phase_of(const residue* r) {
  return (ht_cuda_phase){(int32_t)r->side.count, (int32_t)r->side.taps, (int32_t)-r->side.at, (int32_t)r->ahead};
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
    const int64_t taps = y->side.taps * x->side.taps, ahead = y->ahead * conv->wide.taps + y->side.taps * x->ahead;
    if (taps == 0) continue;
    const int64_t from = group * channels * features * all + y->side.tap * conv->wide.taps + x->side.tap;
    const int64_t to = (ahead * conv->groups + group * taps) * features * channels;
    const ht_cuda_unfold unfold = {.x = (const char*)bound->w + from * element, .columns = (char*)turned + to * element, .xb = all,
                                   .xc = y->side.tap_step * conv->wide.taps, .xh = x->side.tap_step, .xw = features * all, .pixels = features,
                                   .h = (int32_t)x->side.taps, .w = (int32_t)channels, .p = 1, .q = 1, .channels = (int32_t)y->side.taps, .groups = 1,
                                   .r = (int32_t)x->side.taps, .s = (int32_t)channels, .down = 1, .right = 1,
                                   .dilation_down = 1, .dilation_right = 1, .stored = taps * channels % piece == 0 ? piece : 1};
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
  told->windows.dilation_down = (int32_t)tall[0].side.by;
  told->windows.dilation_right = (int32_t)wide[0].side.by;
  told->images = (int32_t)images, told->p = (int32_t)p, told->q = (int32_t)q, told->down = down, told->right = right, told->taps_right = conv->wide.taps;
  for (int i = 0; i < down; ++i) told->tall[i] = phase_of(&tall[i]);
  for (int i = 0; i < right; ++i) told->wide[i] = phase_of(&wide[i]);
  return images * tall[0].side.count * wide[0].side.count; /* none has more results than the first */
}
