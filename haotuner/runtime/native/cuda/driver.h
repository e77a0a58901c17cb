/* The driver, opened once for the process; devices with their primary contexts; modules, which stay loaded for the process.
 *
 * Everything here returns 0, or -1 with *error filled: what was done, the driver's own name of the error, what to do. */
#ifndef HT_CUDA_DRIVER_H_
#define HT_CUDA_DRIVER_H_

#include "../ht.h"
#include "cu.h"

#define HT_CUDA_DEVICES 64 /* ordinals that are looked at; no machine has more */

typedef struct {
  int ordinal;
  CUcontext context; /* the primary one, retained for the process */
  int major, minor;  /* compute capability */
  int units;         /* streaming multiprocessors */
  int shared_limit;  /* bytes of one block, by opting in */
} ht_cuda_device;

/* The driver's functions, or NULL with *error filled: no driver, one too old, no device, or a process forked after CUDA began.
 * Safe from any thread; after the first success it costs one load. */
const ht_cu* ht_cu_load(ht_error* error);

/* Fill *error for a call of the driver that did not succeed; returns -1. `doing`: "loading a module". */
int ht_cu_refuse(ht_error* error, CUresult result, const char* doing);
int ht_cu_sticky(CUresult result); /* whether the error ends the use of the device by this process */

/* Device `ordinal` with its primary context, opened at the first call; NULL with *error filled. Not current in any thread yet. */
const ht_cuda_device* ht_cuda_open(int ordinal, ht_error* error);
/* The same if it is open already, else NULL without a word: a few nanoseconds, for the path of every call. */
const ht_cuda_device* ht_cuda_opened(int ordinal);

typedef struct {
  int pushed;
} ht_cuda_scope;
/* Make the device's context current in this thread unless it is; `leave` on every path afterwards, exactly once. */
int ht_cuda_enter(const ht_cuda_device* device, ht_cuda_scope* scope, ht_error* error);
void ht_cuda_leave(const ht_cuda_scope* scope);

/* Both with the device entered. The image is a cubin; it may go away once it was loaded. */
int ht_cuda_load_module(const void* image, CUmodule* module, ht_error* error);
/* A function of a module, allowed `shared_bytes` of dynamic shared memory. */
int ht_cuda_function(CUmodule module, const char* symbol, int32_t shared_bytes, CUfunction* function, ht_error* error);

#endif /* HT_CUDA_DRIVER_H_ */
