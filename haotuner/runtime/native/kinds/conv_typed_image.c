/* Rows of what windows see, of other types than fp32. With channels last, and groups of whole 32-bit words, they are those of a fp32
 * image of fewer channels, which conv_image.c lays out; with channels first squares of pixels and channels are turned. */
#include <string.h>

#include "conv.h"
#include "copy.h"

#define LINE_BYTES (160 * 1024) /* of lines that were turned: they and a block of image columns share L2 */

#define ROOM ((char*)ht_room(HT_ROOM_TYPED_IMAGE, LINE_BYTES))

static int as_words(const ht_image* im, char* out) {
  const int64_t size = im->conv->typed->x.bits / 8, each = im->conv->channels / im->conv->groups;
  const ht_conv_call* call = im->call;
  if (!im->conv->last || (each * size | call->xb * size | call->xh * size | call->xw * size | im->from * size | im->depth * size) % 4 != 0) return 0;
  ht_conv conv = *im->conv;
  ht_conv_call words = *call;
  ht_image image = *im;
  conv.channels = (int32_t)(conv.channels * size / 4);
  words.xb = call->xb * size / 4;
  words.xh = call->xh * size / 4;
  words.xw = call->xw * size / 4;
  image.conv = &conv;
  image.call = &words;
  image.channel = im->channel * size / 4;
  image.from = im->from * size / 4;
  image.depth = im->depth * size / 4;
  image.width = im->width / 4;
  ht_conv_image(&image, conv.lanes, (float*)out);
  return 1;
}

/* One tap of a run of pixels in a line: channels [first, end) of the group. */
static void copy_tap(const ht_image* im, const char* x, int64_t low, int64_t high, int64_t length, int64_t first, int64_t end, char* out) {
  const int64_t size = im->conv->typed->x.bits / 8, gap = im->phase->wide.move * im->call->xw, apart = im->call->xc;
  for (int64_t i = 0; i < length; ++i)
    if (i < low || i >= high) memset(out + i * im->width, 0, (size_t)((end - first) * size));
  if (low >= high) return;
  const char* from = x + (low * gap + first * apart) * size;
  out += low * im->width;
  if (apart == 1)
    for (int64_t i = 0; i < high - low; ++i) memcpy(out + i * im->width, from + i * gap * size, (size_t)((end - first) * size));
  else if (gap == 1) ht_typed_turn(out, im->width, from, apart * size, end - first, high - low, size);
  else
    for (int64_t c = 0; c < end - first; ++c)
      for (int64_t i = 0; i < high - low; ++i) memcpy(out + i * im->width + c * size, from + (c * apart + i * gap) * size, (size_t)size);
}

/* With channels first and several taps, the lines that windows of some rows see are turned once, to channels last, and laid out from
 * there: otherwise each pixel would be turned for each of its taps. Pixels that were laid out; 0: lines find no room. */
static int64_t turned(const ht_image* im, char* out) {
  const ht_side *tall = &im->phase->tall, *wide = &im->phase->wide;
  const ht_conv_call* call = im->call;
  const int64_t size = im->conv->typed->x.bits / 8, channels = im->conv->channels / im->conv->groups, line = call->w * channels * size;
  const int64_t row = im->pixel / wide->count, b = row / tall->count, p = row % tall->count, column = im->pixel % wide->count;
  const int64_t taps = (tall->taps - 1) * tall->by + 1, room = LINE_BYTES / line;
  if (tall->by < 0 || tall->move < 1 || room < taps) return 0;
  const int64_t rows = min_i64((room - taps) / tall->move + 1, tall->count - p);
  const int64_t count = min_i64(rows * wide->count - column, im->count), last = p + (column + count - 1) / wide->count;
  const int64_t low = max_i64(p * tall->move + tall->at, 0), high = min_i64(last * tall->move + tall->at + taps, call->h);
  const char* from = (const char*)call->x + (b * call->xb + im->channel * call->xc) * size;
  const int64_t joined = call->xh == call->w ? max_i64(high - low, 1) : 1; /* lines that follow one another: short ones fill no square */
  for (int64_t y = low; y < high; y += joined)
    ht_typed_turn(ROOM + (y - low) * line, channels * size, from + y * call->xh * size, call->xc * size, channels, joined * call->w, size);
  ht_conv conv = *im->conv;
  ht_conv_call lines = *call;
  ht_image image = *im;
  conv.channels = (int32_t)channels;
  conv.groups = 1;
  conv.last = 1;
  lines.x = (const float*)(const void*)(ROOM - low * line);
  lines.xc = 1;
  lines.xw = channels;
  lines.xh = call->w * channels;
  lines.xb = 0;
  image.conv = &conv;
  image.call = &lines;
  image.channel = 0;
  image.count = count;
  ht_conv_rows(&image, out);
  return count;
}

/* Whether a window's taps in a line lie side by side in the image, too, and all of them are laid out at once. */
static int side_by_side(const ht_image* im) {
  const ht_side *tall = &im->phase->tall, *wide = &im->phase->wide;
  const int64_t channels = im->conv->channels / im->conv->groups;
  return wide->taps > 1 && wide->by == 1 && wide->move >= 1 && im->call->xc == 1 && im->call->xw == channels && im->from == 0 &&
         im->depth == tall->taps * wide->taps * channels;
}

/* One line of the windows of a run of pixels, the first of which begins at x; `from`: the image's line, NULL: it lies outside. */
static void copy_line(const ht_image* im, const char* from, int64_t x, int64_t length, int64_t pixel, char* out) {
  const ht_side* wide = &im->phase->wide;
  const int64_t w = im->call->w, bytes = wide->taps * pixel;
  for (int64_t i = 0; i < length; ++i, x += wide->move, out += im->width) {
    if (from != NULL && x >= 0 && x + wide->taps <= w) {
      ht_copy_few(out, from + x * pixel, bytes);
      continue;
    }
    const int64_t low = from == NULL ? 0 : min_i64(max_i64(-x, 0), wide->taps), high = from == NULL ? 0 : max_i64(min_i64(w - x, wide->taps), low);
    memset(out, 0, (size_t)(low * pixel));
    if (high > low) memcpy(out + low * pixel, from + (x + low) * pixel, (size_t)((high - low) * pixel));
    memset(out + high * pixel, 0, (size_t)((wide->taps - high) * pixel));
  }
}

static void lay_out(const ht_image* im, char* out);

void ht_conv_rows(const ht_image* im, char* out) {
  if (as_words(im, out)) return;
  ht_image left = *im;
  const int several = !im->conv->last && im->phase->tall.taps * im->phase->wide.taps > 1 && im->call->xw == 1;
  for (int64_t done = 1; several && left.count > 0 && done > 0; left.pixel += done, left.count -= done, out += done * left.width)
    done = turned(&left, out);
  if (left.count > 0) lay_out(&left, out);
}

static void lay_out(const ht_image* im, char* out) {
  const ht_side *tall = &im->phase->tall, *wide = &im->phase->wide;
  const ht_conv_call* call = im->call;
  const int64_t size = im->conv->typed->x.bits / 8, channels = im->conv->channels / im->conv->groups, end = im->from + im->depth;
  const int joined = side_by_side(im);
  for (int64_t pixel = im->pixel, last = im->pixel + im->count; pixel < last;) {
    int64_t row = pixel / wide->count, column = pixel % wide->count, length = min_i64(wide->count - column, last - pixel);
    const int64_t b = row / tall->count, y0 = row % tall->count * tall->move + tall->at, x0 = column * wide->move + wide->at;
    for (int64_t line = 0; joined && line < tall->taps; ++line) {
      const int64_t y = y0 + line * tall->by, bytes = channels * size;
      const char* from = (const char*)call->x + (b * call->xb + im->channel + y * call->xh) * size;
      copy_line(im, y < 0 || y >= call->h ? NULL : from, x0, length, bytes, out + line * wide->taps * bytes);
    }
    for (int64_t tap = joined ? end : im->from / channels; tap * channels < end; ++tap) {
      int64_t first = max_i64(im->from - tap * channels, 0), beyond = min_i64(end - tap * channels, channels);
      int64_t y = y0 + tap / wide->taps * tall->by, x = x0 + tap % wide->taps * wide->by;
      int64_t low = x >= 0 ? 0 : (-x + wide->move - 1) / wide->move, high = x >= call->w ? 0 : (call->w - x + wide->move - 1) / wide->move;
      high = min_i64(high, length);
      if (y < 0 || y >= call->h) low = high = 0;
      const char* from = (const char*)call->x + (b * call->xb + im->channel * call->xc + y * call->xh + x * call->xw) * size;
      copy_tap(im, from, low, high, length, first, beyond, out + (tap * channels + first - im->from) * size);
    }
    pixel += length;
    out += length * im->width;
  }
}
