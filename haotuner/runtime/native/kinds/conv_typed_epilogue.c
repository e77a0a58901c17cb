/* What follows the sums of a convolution in another type than fp32: bias, epilogue, the result's type, and where it lies in y. */
#include <string.h>

#include "conv.h"
#include "epilogue.h"

typedef struct { /* of each thread */
  _Alignas(64) char made[HT_CONV_SUMS * 4];
  _Alignas(64) float wide[HT_CONV_SUMS];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_FINISH, sizeof(rooms)))

typedef struct { /* pixels of a row of the output */
  int64_t b, p, q, length;
} line;

static line line_at(const ht_phase* phase, int64_t pixel, int64_t pixels) {
  const ht_side *tall = &phase->tall, *wide = &phase->wide;
  int64_t row = pixel / wide->count, column = pixel % wide->count, length = wide->count - column;
  return (line){row / tall->count, tall->first + row % tall->count * tall->step, wide->first + column * wide->step,
                length < pixels ? length : pixels};
}

/* One line of results (pixels, features), side by side in `made`, to channels first. */
static void turn_out(const ht_conv_call* call, int64_t gap, const char* made, char* y, int64_t pixels, int64_t features, int64_t size) {
  if (gap == 1) {
    ht_typed_turn(y, call->yf * size, made, features * size, pixels, features, size);
    return;
  }
  for (int64_t f = 0; f < features; ++f)
    for (int64_t i = 0; i < pixels; ++i) memcpy(y + (f * call->yf + i * gap) * size, made + (i * features + f) * size, (size_t)size);
}

int ht_conv_finish_typed(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase, float* sums,
                         int64_t stride, int64_t feature, int64_t features, int64_t pixel, int64_t pixels) {
  const ht_typed* typed = conv->typed;
  const float* given[HT_MAX_EXTRA];
  const int stepped = kernel->stepped != NULL && call->bias == NULL;
  for (int e = 0; stepped && e < call->extras; ++e) given[e] = call->extra[e].data + feature * call->extra[e].sf;
  if (typed->floats != NULL && !typed->raw && !stepped) typed->floats(sums, stride, (char*)sums, stride * 4, pixels, features);
  if (call->bias != NULL)
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t f = 0; f < features; ++f) sums[i * stride + f] += call->bias[feature + f];
  if (kernel->epilogue != NULL && !stepped) {
    ht_extra extra[HT_MAX_EXTRA];
    for (int e = 0; e < call->extras; ++e) {
      const ht_conv_extra* of = &call->extra[e];
      if (of->sb == 0 && of->sh == 0 && of->sw == 0) {
        extra[e] = (ht_extra){of->data + feature * of->sf, 0, 1};
        continue;
      }
      for (int64_t at = 0; at < pixels;) { /* one step reads a tensor like y: the residual */
        const line here = line_at(phase, pixel + at, pixels - at);
        const char* from = (const char*)of->data +
                           (here.b * of->sb + here.p * of->sh + here.q * of->sw + feature * of->sf) * (typed->whole.bits / 8);
        ht_typed_widen(typed->whole, from, phase->wide.step * of->sw, of->sf, here.length, features, ROOM->wide + at * stride, stride);
        at += here.length;
      }
      extra[e] = (ht_extra){ROOM->wide, stride, 1};
    }
    if (ht_epilogue_run(kernel->epilogue, kernel->lanes, sums, stride, extra, call->extras, 0, 0, pixels, features) != 0) return -1;
  }
  const int64_t size = typed->y.bits / 8, gap = phase->wide.step * call->yw, image = phase->wide.count * phase->tall.count;
  /* Rows that follow one another are one: short ones fill no square of those that are turned. */
  const int joined = phase->wide.step == 1 && phase->tall.step == 1 && call->yh == call->q * call->yw;
  for (int64_t at = 0; at < pixels;) {
    line here = line_at(phase, pixel + at, pixels - at);
    if (joined) here.length = image - (pixel + at) % image < pixels - at ? image - (pixel + at) % image : pixels - at;
    char* y = (char*)call->y + (here.b * call->yb + feature * call->yf + here.p * call->yh + here.q * call->yw) * size;
    const int turned = call->yf != 1 && features != 1;
    char* to = turned ? ROOM->made : y;
    const int64_t apart = turned ? features * size : gap * size;
    if (stepped) kernel->stepped(sums + at * stride, stride, to, apart, here.length, features, given);
    else typed->store(sums + at * stride, stride, to, apart, here.length, features);
    if (turned) turn_out(call, gap, ROOM->made, y, here.length, features, size);
    at += here.length;
  }
  return 0;
}
