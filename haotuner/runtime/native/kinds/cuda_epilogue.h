/* What follows the sums of a product on a device: steps of an epilogue, and what they read with one value a channel. */
#ifndef HT_CUDA_AFTER_H_
#define HT_CUDA_AFTER_H_

#include "cuda/loaded.h"

typedef struct { /* of an op */
  uint64_t steps;          /* as ht_cuda_args.after; 0: a bias and a residual are added, where there are any */
  int32_t y_type;          /* HT_Y_OWN and on */
  uint8_t fused, residual; /* fused: values of a channel are bound as the epilogue says, else perhaps a bias; residual: it comes with the call */
} ht_cuda_after;

enum { HT_BIAS, HT_SCALE, HT_LOW, HT_HIGH, HT_SLOPE, HT_CHANNELS };

typedef struct { /* of a bound weight: one axis of values each, or NULL */
  const void* values[HT_CHANNELS];
} ht_cuda_channels;

/* What is bound with a weight: `given` in the order of the op's operands, `extent` values (groups > 0: a row of them for each group)
 * on the weight's device. */
int ht_cuda_bind_channels(const ht_op* op, const ht_cuda_after* after, int64_t groups, int64_t extent, const DLTensor* const* given,
                          int32_t count, int device, ht_cuda_channels* out, ht_error* error);

/* Whether memory that is written holds any of them, so many bytes each. */
int ht_cuda_meet_channels(const ht_cuda_channels* channels, int64_t bytes, const void* y, int64_t y_bytes);

/* Tell a launch. */
void ht_cuda_tell(ht_cuda_args* args, const ht_cuda_after* after, const ht_cuda_channels* channels);

static inline int ht_cuda_meet(const void* y, int64_t y_bytes, const void* other, int64_t bytes) {
  const uintptr_t a = (uintptr_t)y, b = (uintptr_t)other;
  return other != NULL && a < b + (uintptr_t)bytes && b < a + (uintptr_t)y_bytes;
}

#endif /* HT_CUDA_AFTER_H_ */
