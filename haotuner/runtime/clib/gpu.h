/* A CUDA device of this host, as its driver describes it; no context is made. As haotuner/runtime/device_memory.py. */
#ifndef HT_GPU_H_
#define HT_GPU_H_

#include "haotuner.h"
#include "manifest.h"

typedef struct ht_gpu {
  int ordinal, major, minor, units;
  int driver;  /* the CUDA that the driver serves, as it says it: 13000 */
  double gbps; /* memory bandwidth from clock and bus width; 0 where the driver does not say */
} ht_gpu;

/* The device of that number as CUDA counts them; HT_NO_DEVICE says what is not there. */
ht_status ht_gpu_find(int ordinal, ht_gpu* out, ht_error* error);
/* Whether code for `arch` (sm_80, sm_90a) runs on it. */
int ht_gpu_runs(const ht_gpu* gpu, const char* arch);
/* Whether the driver takes a pack's code; HT_PACK_MISMATCH says what was found and what is needed. */
ht_status ht_gpu_takes(const ht_gpu* gpu, const ht_manifest* manifest, const char* path, ht_error* error);
/* How far the device is from the one that a pack was tuned on; up to HT_GPU_NEAR it is one of its kind. */
double ht_gpu_distance(const ht_gpu* gpu, const ht_manifest* manifest);
#define HT_GPU_NEAR 0.1

#endif /* HT_GPU_H_ */
