/* A pack's device code, loaded once a device and kept for the process: captured graphs may replay it at any time. */
#ifndef HT_CUDA_LOADED_H_
#define HT_CUDA_LOADED_H_

#include "launch.h"

#define HT_CUDA_DTYPES 4

typedef struct { /* a group of a whole model: one launch, given addresses and lines of the size table as they lie */
  const char* name;
  int32_t lanes;        /* threads that share a point: 1, a warp, or a block of 256 */
  int32_t points;       /* so many of its loops, from the outermost on, make points */
  int32_t count;        /* lines that follow the addresses */
  const int32_t* sizes;
} ht_cuda_group;

typedef struct {
  const void* image; /* a cubin */
  int32_t count;
  const ht_cuda_group* groups; /* in the order of ht_groups */
} ht_cuda_groups_code;

typedef struct {
  const void* image; /* a cubin: all kernels, and the reductions of the dtypes that split k */
  const char* arch;  /* sm_90a */
  int32_t major, minor;
  int32_t exact;  /* runs on (major, minor) alone; otherwise also on later minors of the same major */
  int32_t driver; /* the oldest CUDA, as cuDriverGetVersion says it, whose driver takes the image */
  int32_t kernel_count;
  const ht_cuda_kernel* kernels;
  const char* reduces[HT_CUDA_DTYPES]; /* symbols; NULL: no kernel of the dtype splits k */
  const char* unfolds[HT_CUDA_DTYPES]; /* the same; NULL: the pack has no convolution of the dtype */
  const char* folds[HT_CUDA_DTYPES];   /* the same of transposed ones */
  const ht_cuda_groups_code* groups;   /* of whole models; NULL: there are none */
} ht_cuda_code;

extern const ht_cuda_code ht_cuda_pack_code; /* in pack_data.c */

typedef struct {
  const ht_cuda_device* device;
  CUfunction* functions; /* of each kernel */
  CUfunction reduces[HT_CUDA_DTYPES], unfolds[HT_CUDA_DTYPES], folds[HT_CUDA_DTYPES];
  CUfunction* groups;
} ht_cuda_loaded;

/* The code on device `ordinal`, loaded at the first call: not for a call under capture. NULL with *error filled. */
const ht_cuda_loaded* ht_cuda_load(int ordinal, ht_error* error);

#endif /* HT_CUDA_LOADED_H_ */
