/* Transposed convolutions as conv_transpose_gemm.c computes them: which they are, residues that see the same windows, and the packed weight. */
#include "conv.h"

int ht_conv_is_woven(const ht_conv* conv) {
  /* conv.py says the same. */
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  const int64_t phases = (int64_t)tall->stride * wide->stride;
  const int turned = conv->last && ht_conv_has(conv, HT_CONV_TURNED);
  return conv->transposed && conv->typed == NULL && !turned && phases > 1 && phases <= HT_CONV_RESIDUES && tall->dilation == 1 &&
         wide->dilation == 1 && tall->taps >= tall->stride && wide->taps >= wide->stride;
}

/* The sides of classes of one axis: taps in the order of the image. How many there are. */
static int64_t sides(const ht_window* w, int64_t outputs, ht_side side[2], int64_t residues[2]) {
  const int64_t s = w->stride, rest = w->taps % s, low = w->before / s, end = (outputs - 1 + w->before) / s + 1;
  int64_t count = 0;
  for (int64_t first = 0; first < s; first += residues[count++]) {
    const int64_t taps = ceil_div(w->taps - first, s);
    residues[count] = first < rest ? rest : s - first;
    side[count] = (ht_side){first, s, outputs > 0 ? end - low : 0, 1, low - taps + 1, 1, first + (taps - 1) * s, -s, taps};
  }
  return count;
}

int64_t ht_conv_classes(const ht_conv* conv, int64_t p, int64_t q, ht_conv_class* out) {
  ht_side tall[2], wide[2];
  int64_t rows[2], columns[2], count = 0, offset = 0;
  const int64_t talls = sides(&conv->tall, p, tall, rows), wides = sides(&conv->wide, q, wide, columns);
  for (int64_t t = 0; t < talls; ++t)
    for (int64_t u = 0; u < wides; ++u, ++count) {
      ht_phase* ph = &out[count].phase;
      const int64_t lines = conv->features / conv->groups * rows[t] * columns[u];
      out[count].rows = rows[t];
      out[count].columns = columns[u];
      *ph = (ht_phase){.tall = tall[t], .wide = wide[u], .depth = conv->channels / conv->groups * tall[t].taps * wide[u].taps, .offset = offset};
      ph->stride = ht_conv_apart(conv->last ? ph->depth * conv->lanes : ph->depth);
      ph->group = ph->stride * (conv->last ? ceil_div(lines, conv->lanes) + HT_CONV_SLACK_PANELS : lines);
      offset += ph->group * conv->groups;
    }
  return count;
}

int64_t ht_conv_woven_packed(const ht_conv* conv) {
  ht_conv_class classes[HT_CONV_CLASSES];
  const int64_t count = ht_conv_classes(conv, 0, 0, classes);
  const ht_phase* end = &classes[count - 1].phase; /* rows of the first are the longest */
  return end->offset + end->group * conv->groups + (conv->last ? 0 : HT_CONV_SLACK_ROWS * classes[0].phase.stride);
}

void ht_conv_pack_woven(const ht_conv* conv, const float* weight, float* packed) {
  const int64_t channels = conv->channels / conv->groups, features = conv->features / conv->groups, lanes = conv->lanes;
  ht_conv_class classes[HT_CONV_CLASSES];
  const int64_t count = ht_conv_classes(conv, 0, 0, classes);
  for (const ht_conv_class* k = classes; k < classes + count; ++k)
    for (int64_t g = 0, window = (int64_t)conv->tall.taps * conv->wide.taps; g < conv->groups; ++g)
      for (int64_t a = 0; a < k->rows; ++a)
        for (int64_t r = 0; r < k->columns; ++r)
          for (int64_t f = 0; f < features; ++f) {
            const int64_t row = (f * k->rows + a) * k->columns + r, column = (a * k->columns + r) * features + f;
            float* to = packed + k->phase.offset + g * k->phase.group +
                        (conv->last ? column / lanes * k->phase.stride + column % lanes : row * k->phase.stride);
            const int64_t taps = k->phase.tall.taps * k->phase.wide.taps, apart = conv->last ? lanes : 1;
            for (int64_t c = 0; c < channels; ++c) {
              const float* from = weight + ((g * channels + c) * features + f) * window;
              for (int64_t t = 0; t < k->phase.tall.taps; ++t)
                for (int64_t u = 0; u < k->phase.wide.taps; ++u) {
                  const int64_t y = k->phase.tall.tap + t * k->phase.tall.tap_step + a, x = k->phase.wide.tap + u * k->phase.wide.tap_step + r;
                  const int64_t at = t * k->phase.wide.taps + u, term = conv->last ? at * channels + c : c * taps + at;
                  to[term * apart] = from[y * conv->wide.taps + x];
                }
            }
          }
}
