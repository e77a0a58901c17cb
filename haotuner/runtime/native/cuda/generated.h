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
  int32_t parts;      /* blocks' parts, at most, of the axis that the output is one fold over; 1: none */
  int32_t dimension;  /* which of the sizes that is */
  int32_t step;       /* parts begin at multiples */
  int32_t stages;     /* launches of a call in parts, each over all of them; 0: one, then one that joins them */
  int32_t record;     /* floats that a part leaves of a row, which is a point of the other axes than the lanes'; 0: as the output has */
  int32_t rows;       /* points of the axis before the lanes' that a block takes at a time, its threads the lanes; 1: as groups do */
  int32_t shared;     /* bytes of dynamic shared memory of a block */
} ht_cuda_generated_kernel;

enum { HT_GENERATED_PARTIAL = 1 << 20 }; /* floats of a workspace: few rows are what is cut */

/* In how many parts a call's axis is folded on a device of so many multiprocessors: no more than threads are idle for; 1: whole. */
int64_t ht_cuda_generated_parts(const ht_cuda_generated_kernel* kernel, const ht_generated_args* args, const int64_t* shape, int32_t rank, int32_t units);

/* Floats of a workspace for so many parts. */
int64_t ht_cuda_generated_floats(const ht_cuda_generated_kernel* kernel, const int64_t* shape, int32_t rank, int64_t parts);

/* Launch on `stream`, of the context that is current, so many blocks as the output's shape (rank axes) and `units` ask for.
 * `partial`: memory for as many results as there are parts, and a second launch that joins them; NULL: one launch of all.
 * Allocates nothing, waits for nothing. Where the output has no element, what is written beside it may have some: a launch is made. */
int ht_cuda_launch_generated(const ht_cuda_generated_kernel* kernel, CUfunction function, const ht_generated_args* args,
                             const int64_t* shape, int32_t rank, int32_t units, float* partial, CUstream stream, ht_error* error);

#endif /* HT_CUDA_GENERATED_LAUNCH_H_ */
