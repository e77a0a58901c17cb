/* Which taps of a transposed convolution reach the outputs of one residue of its stride. */
#include "conv.h"

static int64_t gcd(int64_t a, int64_t b) { return b == 0 ? a : gcd(b, a % b); }

ht_side ht_conv_residue(const ht_window* w, int64_t first, int64_t outputs) {
  int64_t step = w->stride / gcd(w->dilation, w->stride), tap = 0;
  while (tap < step && tap < w->taps && (first + w->before - tap * w->dilation) % w->stride != 0) ++tap;
  int64_t taps = tap < step && tap < w->taps ? ceil_div(w->taps - tap, step) : 0;
  int64_t at = taps > 0 ? (first + w->before - tap * w->dilation) / w->stride : 0;
  return (ht_side){first, w->stride, outputs > first ? ceil_div(outputs - first, w->stride) : 0, 1, at, -(step * w->dilation / w->stride), tap, step, taps};
}
