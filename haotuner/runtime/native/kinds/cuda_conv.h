/* conv1d and conv2d on CUDA: image columns are laid out in a workspace, and multiplied with the weight, which stays as torch stores it.
 *
 *   channels first: Y[b, group] (features, pixels) = weight (features, terms) . columns (pixels, terms)^T, a product an image and group
 *   channels last:  Y[group] (pixels, features) = columns (pixels, terms) . weight (features, terms)^T, a product a group
 *
 * Images are taken so many at a time that their columns find room. */
#ifndef HT_CUDA_CONV_H_
#define HT_CUDA_CONV_H_

#include "conv.h"
#include "cuda_after.h"

typedef struct {
  ht_conv conv; /* windows and layout; it has no programs of its own */
  uint8_t dtype;
  ht_cuda_after after;
  const int32_t* kernels; /* places in ht_cuda_pack_code.kernels; cells of the plan are ht_sliced_entry, of which the kernel counts */
} ht_cuda_conv;

extern const ht_kind ht_cuda_conv_kind; /* its call takes x, a bound weight, out, and perhaps a residual */

#endif /* HT_CUDA_CONV_H_ */
