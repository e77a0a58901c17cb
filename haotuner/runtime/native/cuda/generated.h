/* One launch of a generated program, for packs and for the library that times. */
#ifndef HT_CUDA_GENERATED_LAUNCH_H_
#define HT_CUDA_GENERATED_LAUNCH_H_

#include "driver.h"
#include "ht_cuda_generated.h"

typedef struct {      /* how a program is cut */
  int32_t lanes;      /* threads of a group: part of a warp, a warp, or a block */
  int32_t vectors;    /* of so many elements each that a group takes at a time */
  int32_t lane_axis;  /* of the output, along the lanes; -1: none */
  int32_t merges;     /* all axes may be taken as one where no tensor has gaps */
} ht_cuda_generated_kernel;

/* Launch on `stream`, of the context that is current, so many blocks as the output's shape (rank axes) and `units` ask for.
 * Allocates nothing, waits for nothing. An output of no element launches nothing. */
int ht_cuda_launch_generated(const ht_cuda_generated_kernel* kernel, CUfunction function, const ht_generated_args* args,
                             const int64_t* shape, int32_t rank, int32_t units, CUstream stream, ht_error* error);

#endif /* HT_CUDA_GENERATED_LAUNCH_H_ */
