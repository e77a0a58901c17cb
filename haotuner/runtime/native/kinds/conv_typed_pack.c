/* The weight of a convolution in another type than fp32: panels of words, and what sums of signed bytes begin with behind them; of a
 * depthwise one every element widened to what it is multiplied as. */
#include <string.h>

#include "conv.h"

static void pack_direct(const ht_conv* conv, const char* weight, float* packed) {
  const int64_t taps = (int64_t)conv->tall.taps * conv->wide.taps, apart = ht_conv_direct_apart(conv);
  for (int64_t f = 0; f < conv->features; ++f)
    for (int64_t tap = 0; tap < taps; ++tap) {
      float* to = packed + ht_conv_direct_at(conv, f) + tap * apart;
      if (conv->typed->weight.bits == 8) {
        int32_t value = ((const int8_t*)weight)[f * taps + tap];
        memcpy(to, &value, sizeof value);
      } else if (conv->typed->weight.bits == 32) {
        memcpy(to, weight + (f * taps + tap) * 4, sizeof *to);
      } else {
        uint16_t bits;
        memcpy(&bits, weight + (f * taps + tap) * 2, sizeof bits);
        *to = ht_typed_widened(conv->typed->weight.code, bits);
      }
    }
}

void ht_conv_pack_typed(const ht_conv* conv, const char* weight, float* packed) {
  const ht_typed* typed = conv->typed;
  const int64_t channels = conv->channels / conv->groups, features = conv->features / conv->groups, size = typed->weight.bits / 8;
  const int64_t window = (int64_t)conv->tall.taps * conv->wide.taps, lanes = conv->lanes;
  if (ht_conv_is_direct(conv)) {
    pack_direct(conv, weight, packed);
    return;
  }
  ht_phase phase;
  for (int64_t index = 0, phases = ht_conv_phases(conv); index < phases; ++index) {
    ht_conv_phase(conv, index, 0, 0, &phase);
    for (int64_t g = 0; g < conv->groups; ++g)
      for (int64_t f = 0; f < features; ++f) {
        char* column = (char*)(packed + phase.offset + g * phase.group + f / lanes * phase.stride) + f % lanes * typed->column;
        int64_t term = 0, sum = 0;
        for (int64_t t = 0; t < phase.tall.taps; ++t)
          for (int64_t u = 0; u < phase.wide.taps; ++u)
            for (int64_t c = 0; c < channels; ++c, ++term) {
              int64_t tap = (phase.tall.tap + t * phase.tall.tap_step) * conv->wide.taps + phase.wide.tap + u * phase.wide.tap_step;
              const char* from = weight + size * (tap + window * (conv->transposed ? (g * channels + c) * features + f
                                                                                   : (g * features + f) * channels + c));
              memcpy(column + term / typed->terms * lanes * typed->column + term % typed->terms * size, from, (size_t)size);
              if (size == 1) sum += *(const int8_t*)from;
            }
        if (!ht_typed_signed(typed)) continue;
        int32_t first = (int32_t)(uint32_t)(-128 * sum);
        memcpy(packed + phase.offset + g * phase.group + phase.first + f, &first, sizeof first);
      }
  }
}
