/* conv1d and conv2d, and their transposes: products of weights and blocks of image columns that are made as they are needed.
 *
 * The output is a grid of pixels (b, p, q), which are numbered in that order. A transposed convolution is one ordinary convolution
 * for each phase of its stride. In every phase the pixels are cut into blocks; what a block's windows see is laid out in scratch
 * memory, in L2, and dense's micro-kernels multiply it with the packed weight. In fp32 phases that see the same windows are one product
 * (conv_transpose_gemm.c).
 *
 *   channels last:  rows of the tile are pixels, its columns features; the weight is packed as panels [panel][k][lanes].
 *   channels first: rows of the tile are features, its columns pixels; the weight is packed as rows [feature][k]. */
#ifndef HT_CONV_H_
#define HT_CONV_H_

#include "dense.h"
#include "scratchpad.h"
#include "sliced.h"

enum { HT_CONV_B = 0, HT_CONV_H, HT_CONV_W, HT_CONV_P, HT_CONV_Q, HT_CONV_C, HT_CONV_F, HT_CONV_PACKED, HT_CONV_AXES }; /* of ht_op */
enum { HT_CONV_X = 0, HT_CONV_WEIGHT = 1, HT_CONV_EXTRA = 2 }; /* then y, and perhaps a bias */

typedef struct { /* how the window moves over one axis of the image */
  int32_t taps, stride, dilation, before, after, more; /* more: of a transposed one, elements added behind the output */
} ht_window;

typedef struct {
  int32_t channels, features, groups;
  ht_window tall, wide;
  uint8_t transposed, last, flat; /* last: channels are the innermost axis; flat: images have no height */
  uint8_t forms;                  /* of the weight beside the plain one, a bit 1 << form of each: HT_CONV_TURNED, tiles of conv_winograd.c */
  int32_t lanes;                  /* columns of a panel of the packed weight */
  const ht_kernel* kernels;       /* channels first: `tail` is the program of the last `nt` features of a group */
  const ht_typed* typed;          /* NULL: fp32. Else rows are pixels and columns features whatever the layout (conv_typed.c) */
} ht_conv;

typedef struct { /* one axis of a phase: output first + step * i, tap t, meets input move * i + at + by * t */
  int64_t first, step, count; /* outputs */
  int64_t move, at, by;       /* inputs */
  int64_t tap, tap_step, taps;
} ht_side;

typedef struct { /* an ordinary convolution: a part of the output, and the taps that reach it */
  ht_side tall, wide;
  int64_t depth;  /* terms of an output's sum: channels of a group times taps */
  int64_t stride; /* from one row, or one panel, of the packed weight to the next */
  int64_t offset; /* of the phase's weight in the packed one */
  int64_t group;  /* from one group's weight to the next */
  int64_t first;  /* of signed bytes, from a group's weight to what its sums begin with */
} ht_phase;

/* conv_residue.c: outputs first, first + stride, ... of a transposed convolution; `taps` is 0 where none reaches them. */
ht_side ht_conv_residue(const ht_window* w, int64_t first, int64_t outputs);

int64_t ht_conv_phases(const ht_conv* conv);
/* Phase `index` of outputs p x q, from the one before it; where p and q are 0 only its weight is described. */
void ht_conv_phase(const ht_conv* conv, int64_t index, int64_t p, int64_t q, ht_phase* phase);
/* Extent of the output along an axis; below 1 where the window does not fit. */
static inline int64_t ht_conv_out(const ht_conv* conv, const ht_window* w, int64_t extent) {
  int64_t reach = (int64_t)w->dilation * (w->taps - 1);
  if (conv->transposed) return (extent - 1) * w->stride - w->before - w->after + reach + w->more + 1;
  int64_t room = extent + w->before + w->after - reach - 1;
  return room < 0 ? 0 : room / w->stride + 1;
}
/* Channels last, fp32: leaves out taps at the ends of a phase's window that meet the padding alone, whatever the output, so that an image
 * of few lines reads the weights that it needs. The phase of the packed weight stays as it is, its offset moves on. */
void ht_conv_shorten(const ht_conv* conv, int64_t h, int64_t w, ht_phase* phase);
#define HT_CONV_SLACK_ROWS 16  /* of the packed weight: the tallest tile reads so many rows from the last one on */
#define HT_CONV_SLACK_PANELS 4 /* and the widest so many panels */
int64_t ht_conv_packed(const ht_conv* conv); /* floats of the packed weight */
int64_t ht_conv_plain(const ht_conv* conv);  /* of these what products of image columns read; the other forms follow */
enum { HT_CONV_TURNED = 1 }; /* a form: panels as channels last have them, terms in the order (channels / 32, tap, 32 channels), for conv_pixel_major.c */
#define HT_CONV_TURNED_CHANNELS 32
#define HT_CONV_FORMS 8 /* forms are below */
static inline int ht_conv_has(const ht_conv* conv, int form) { return (conv->forms >> form & 1) != 0; }
int64_t ht_conv_form(const ht_conv* conv, int form); /* where a form begins; of HT_CONV_FORMS: where all end */
ht_conv ht_conv_as_turned(const ht_conv* conv);      /* the convolution whose plain weight is that form */
int64_t ht_conv_apart(int64_t floats);       /* rounded up to an odd number of cache lines: such rows never meet in few sets of L1 */
/* `weight` as torch stores it, (f, c/groups, r, s), transposed (c, f/groups, r, s), contiguous. */
void ht_conv_pack(const ht_conv* conv, const float* weight, float* packed);

/* conv_tiles.c: `tiles` row tiles times `groups` tiles of columns, added to y where `add` says so; 0, or -1 where the kernel refused. */
typedef struct {
  const float *x, *w;
  float* y;
  int64_t ldx, w_stride, ldy, depth, tiles, groups, add;
  const int64_t* terms; /* of programs of conv_lines.c: how far each term lies from the first element; NULL: side by side */
} ht_conv_tile;
int ht_conv_tiles(ht_kernel_fn fn, int64_t mr, int64_t nr, int64_t pw, const ht_conv_tile* c);
/* Channels first: `count` rows of `weight`, `stride` apart, times the panels that c->w and c->groups say, into y: whole tiles, then the rest. */
int ht_conv_down(const ht_kernel* kernel, ht_conv_tile c, const float* weight, int64_t stride, int64_t count, float* y, int64_t ldy);
/* `count` columns from panels of `lanes`; those beyond the last whole tile by its program, or by one that computes more. */
int ht_conv_across(const ht_kernel* kernel, int lanes, ht_conv_tile c, int64_t count);

/* conv_winograd.c: by minimal filtering (conv_filter.h): `tile` outputs each way, one where a window has one tap. conv_winograd_pack.c: the
 * weight is laid out as [point][panel][term][lanes] of each tile that conv->forms has, behind one another. */
int64_t ht_conv_winograd_packed(const ht_conv* conv, int tile);
void ht_conv_winograd_pack(const ht_conv* conv, int tile, const float* weight, float* packed);
int ht_conv_run_winograd(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads);

/* fp32, by image columns and woven (conv_run.c, conv_transpose_gemm.c). Of a thread, kept from call to call: half of the smallest private L2 of
 * server cores for a block of image columns, and what its results need where they cannot be written in place. */
#define HT_CONV_IMAGE (72 * 1024)
#define HT_CONV_RESULTS (40 * 1024)
#define HT_CONV_ROWS 96    /* pixels of a block, channels last: the weight streams past once for so many (pack_dense.py) */
#define HT_CONV_PIXELS 512 /* pixels of a block, channels first: the calls of a micro-kernel are few then */
typedef struct {
  _Alignas(64) float results[HT_CONV_RESULTS];
  _Alignas(64) float image[HT_CONV_IMAGE + 64];
} ht_conv_room;

static inline ht_conv_room* ht_conv_rooms(void) { return ht_room(HT_ROOM_CONV, sizeof(ht_conv_room)); }

/* conv_transpose_gemm.c, conv_transpose_gemm_pack.c: transposed ones of several residues. A class: the residues [first, first + rows) x [first, first + columns) of the stride that
 * see the same windows; `step` of its sides is the stride, their outputs i * stride + residue - before are counted by i. */
#define HT_CONV_CLASSES 4
#define HT_CONV_RESIDUES 64 /* at most: one feature's results find room beside one another */
typedef struct {
  ht_phase phase;
  int64_t rows, columns;
} ht_conv_class;
int ht_conv_is_woven(const ht_conv* conv);
int64_t ht_conv_classes(const ht_conv* conv, int64_t p, int64_t q, ht_conv_class* out); /* how many there are */
int64_t ht_conv_woven_packed(const ht_conv* conv);
void ht_conv_pack_woven(const ht_conv* conv, const float* weight, float* packed);
int ht_conv_run_woven(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads);

/* conv_pixel_major.c: channels first by tiles whose rows are pixels. */
int ht_conv_run_turned(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads);

/* conv_lines.c: windows are read from padded lines of the image. */
enum { HT_CONV_LINES = 8 }; /* no form: such kernels read the plain weight */
#define HT_CONV_TERMS 4096  /* of a sum at most */
int ht_conv_run_from_lines(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads);

/* conv_direct.c: one channel makes each feature. Its kernels have no program: `mr` output rows, or pixels, are computed at a time. */
int ht_conv_is_direct(const ht_conv* conv);
/* Of its packed weight: where a feature's first tap lies, and how far its taps lie from one another. (tap, feature) with channels last,
 * (panel of `lanes` features, tap, lane) with channels first. */
static inline int64_t ht_conv_direct_at(const ht_conv* conv, int64_t f) {
  return conv->last ? f : f / conv->lanes * conv->lanes * conv->tall.taps * conv->wide.taps + f % conv->lanes;
}
static inline int64_t ht_conv_direct_apart(const ht_conv* conv) { return conv->last ? conv->features : conv->lanes; }
int ht_conv_run_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads);
/* conv_direct_16.c, _8.c, _4.c: programs of its kernels by width of vectors (conv_direct.h). */
struct ht_direct_job;
void ht_conv_direct_16(struct ht_direct_job* j, int64_t first, int64_t last);
void ht_conv_direct_8(struct ht_direct_job* j, int64_t first, int64_t last);
void ht_conv_direct_4(struct ht_direct_job* j, int64_t first, int64_t last);

/* conv_epilogue.c: the epilogue of a kernel on `rows` x `columns` of the output from (b, f, p, q) on: features x pixels of a row with
 * channels first, pixels x features with channels last. `step`: from one pixel to the next. 0, or -1 where the program refused. */
typedef struct {
  int64_t b, f, p, q, features, pixels, step;
} ht_conv_part;
int ht_conv_finish(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_conv_part* part);
/* Whether all that an epilogue reads are values of channels, so that results may be finished wherever they lie; 0 without an epilogue. */
int ht_conv_reads_channels(const ht_kernel* kernel, const ht_conv_call* call);
/* Channels first: results that lie turned, (line, pixel, lane) with lines `wide` pixels apart, to where they belong in y from (b, f, p, q) on, `step` apart.
 * `room`: NULL, or vectors of turned lines: then what follows them, which reads channels alone, is computed on the way. */
int ht_conv_put_turned(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_conv_part* part, int64_t lines, const float* from,
                       int64_t wide, float* room);
/* conv_epilogue.c: adds a bias, `bias` of the first feature, to results that lie as a kernel writes them, rows `stride` apart. */
void ht_conv_add_bias(const ht_conv* conv, float* results, int64_t stride, const float* bias, int64_t features, int64_t pixels);

int ht_conv_run(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads);

/* conv_image.c: what the windows of `count` pixels from `pixel` on see of one group's channels from `channel` on: terms
 * [from, from + depth) of the phase's sum. Channels first: panels [panel][term][width] of `width` pixels, zero beyond the last.
 * Channels last: rows [pixel][stride]. */
typedef struct {
  const ht_conv* conv;
  const ht_conv_call* call;
  const ht_phase* phase;
  int64_t channel, pixel, count, from, depth;
  int64_t width; /* channels first: of a panel; channels last: from one row to the next */
} ht_image;
void ht_conv_image(const ht_image* image, int lanes, float* out);
/* Copy `count` lines. */
void ht_conv_lines(int lanes, float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t length);
/* The same of elements `gap` apart in each line of `from`, or of `to`. */
void ht_conv_strip(int lanes, float* to, int64_t step, const float* from, int64_t stride, int64_t gap, int64_t count, int64_t length);
/* Elements [low, high) of each line, the others of `length` are zero. */
void ht_conv_padded(int lanes, float* to, int64_t step, const float* from, int64_t stride, int64_t gap, int64_t count, int64_t low, int64_t high,
                    int64_t length);
void ht_conv_spread(int lanes, float* to, int64_t step, int64_t gap, const float* from, int64_t stride, int64_t count, int64_t length);

/* Of other types than fp32: data is of the types that conv->typed says, strides in elements of them. */

/* conv_typed.c and conv_typed_direct.c: compute the call, as ht_conv_run. */
int ht_conv_run_typed(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads);
int ht_conv_run_typed_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads);
/* conv_direct_16_bf16.c etc.: what of it is made for the width and the type (conv_direct.h). */
extern const struct ht_direct_typed ht_conv_direct_16_bf16, ht_conv_direct_16_fp16, ht_conv_direct_16_int8, ht_conv_direct_16_uint8;
extern const struct ht_direct_typed ht_conv_direct_8_bf16, ht_conv_direct_8_fp16, ht_conv_direct_8_int8, ht_conv_direct_8_uint8;
extern const struct ht_direct_typed ht_conv_direct_16_fp32, ht_conv_direct_8_fp32;
/* conv_typed_lines.c: whether windows are read from padded lines of the image, and the phase so. 0, or -1 where an epilogue refused. */
int ht_conv_has_lines(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase);
int ht_conv_run_lines(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase, int share, int threads);
/* conv_typed_pack.c: as ht_conv_pack. */
void ht_conv_pack_typed(const ht_conv* conv, const char* weight, float* packed);
/* conv_typed_image.c: rows [pixel] of `width` bytes each, terms in the order tap, channel, whatever the layout. */
void ht_conv_rows(const ht_image* image, char* out);
/* conv_typed_epilogue.c: sums (pixels, features) from (pixel, feature) on: what follows them, the result's type, and into y. */
int ht_conv_finish_typed(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase, float* sums,
                         int64_t stride, int64_t feature, int64_t features, int64_t pixel, int64_t pixels);
#define HT_CONV_SUMS (16 * 1024) /* of a block at most */

extern const ht_kind ht_conv_kind;

#endif /* HT_CONV_H_ */
