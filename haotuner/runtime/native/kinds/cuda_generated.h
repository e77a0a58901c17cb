/* Generated programs on CUDA: every kind of operator without loops of its own, its call queued on a stream as one launch, two
 * where blocks share a fold. */
#ifndef HT_CUDA_GENERATED_KIND_H_
#define HT_CUDA_GENERATED_KIND_H_

#include "cuda/generated.h"
#include "cuda/loaded.h"
#include "kinds/sliced.h"

typedef struct {
  const int32_t* kernels;                  /* places in ht_cuda_pack_code.kernels; cells of the plan are ht_sliced_entry, of which the kernel counts */
  const ht_cuda_generated_kernel* programs; /* of each of them, */
  int32_t count;                           /* so many */
  int32_t dimensions;                      /* of the graph: */
  const uint8_t* axes;                     /* which axis of the op each one is */
  const uint32_t* in_place;                /* of each kernel: a bit for each operand that the output may be, too */
  int32_t over;                            /* the kernel that allows every operand which is in_place */
} ht_cuda_generated;

extern const ht_kind ht_cuda_generated_kind; /* its call takes the operands in their order, what is written beside out and out last */

#endif /* HT_CUDA_GENERATED_KIND_H_ */
