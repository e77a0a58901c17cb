/* conv1d and conv2d on CUDA: image columns are laid out in a workspace, and multiplied with the weight, which stays as torch stores it.
 *
 *   channels first: Y[b, group] (features, pixels) = weight (features, terms) . columns (pixels, terms)^T, a product an image and group
 *   channels last:  Y[group] (pixels, features) = columns (pixels, terms) . weight (features, terms)^T, a product a group
 *
 * A transposed one is the other way round: the products of every pixel with every tap, in fp32 (of bytes int32), and a launch that gathers them.
 *
 *   channels first: columns[b, group] (features x taps, pixels) = weight (channels, features x taps)^T . x (channels, pixels)
 *   channels last:  columns[group] (pixels, features x taps) = x (pixels, channels) . weight (channels, features x taps)
 *
 * or, where kernels read windows, an ordinary convolution for each residue of the results' places, all of one launch.
 *
 * Kernels that read windows where they lie take x as it is and the weight as (features, taps, channels), turned once where it is kept,
 * else ahead of them: terms are (tap, channel). Nothing else is laid out.
 *
 * Images are taken so many at a time that their columns find room. */
#ifndef HT_CUDA_CONV_H_
#define HT_CUDA_CONV_H_

#include "conv.h"
#include "cuda/weight_cache.h"
#include "cuda_epilogue.h"

typedef struct {
  ht_conv conv; /* windows and layout; it has no programs of its own */
  uint8_t dtype;
  ht_cuda_after after;
  const int32_t* kernels; /* places in ht_cuda_pack_code.kernels; cells of the plan are ht_sliced_entry, of which the kernel counts */
} ht_cuda_conv;

typedef struct { /* a weight on a device */
  uint64_t mark;
  const ht_op* op;
  const ht_cuda_loaded* loaded;
  const void* w;
  ht_cuda_channels channels;
  ht_cuda_kept* kept; /* the weight turned for windows, once; NULL: calls turn it */
} ht_cuda_bound_conv;

/* The planned kernel, or another of the op's that takes these products; -1: none does. */
int ht_cuda_conv_kernel(const ht_op* op, int planned, const ht_cuda_args* args, const ht_cuda_batch* batch, ht_error* error);

/* cuda_conv_transposed.c: bytes of one image's products with every tap; the launches of all images, `each` of them at a time. */
int64_t ht_cuda_fold_bytes(const ht_conv* conv, int64_t h, int64_t w);
int ht_cuda_launch_transposed(const ht_op* op, int planned, const ht_call* call, int64_t each, const ht_cuda_bound_conv* bound, void* columns,
                              ht_queue* queue, ht_error* error);

int64_t ht_cuda_conv_weight_bytes(const ht_cuda_conv* data);
/* The products of `images` images from the first on; columns NULL: x lies as they would. */
void ht_cuda_conv_products(const ht_op* op, const ht_conv_call* c, const ht_cuda_bound_conv* bound, const void* columns, int64_t first, int64_t images,
                           ht_cuda_args* args, ht_cuda_batch* batch);

/* cuda_conv_windows.c: windows where they lie; the weight turned into (features, taps, channels), then the products, so many images at a
 * time as 32-bit offsets and rows reach. 1 where the image does not lie as the kernel wants it, with *error set. */
int ht_cuda_launch_window_products(const ht_op* op, int place, const ht_call* call, const ht_cuda_bound_conv* bound, ht_queue* queue,
                                   ht_error* error);

/* cuda_conv_phases.c, of transposed ones by windows: the weight of each phase turned; what a launch of so many images is told, whose rows of
 * the largest phase are the answer. Strides are at most HT_CUDA_PHASES. */
int ht_cuda_turn_phases(const ht_conv* conv, const ht_cuda_bound_conv* bound, uint8_t dtype, void* turned, CUstream stream, ht_error* error);
int64_t ht_cuda_tell_phases(const ht_conv* conv, const ht_cuda_windows* windows, int64_t images, int64_t p, int64_t q, ht_cuda_phases* told);

/* The weight turned into memory of its own, once, for kernels that read windows. */
int ht_cuda_keep_turned(const ht_op* op, ht_cuda_bound_conv* bound, ht_error* error);

extern const ht_kind ht_cuda_conv_kind; /* its call takes x, a bound weight, out, and perhaps a residual */

#endif /* HT_CUDA_CONV_H_ */
