#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cu.h"
#include "files.h"

ht_status ht_gpu_find(int ordinal, ht_gpu* out, ht_error* error) {
  CUresult (*init)(unsigned), (*count_of)(int*), (*get)(CUdevice*, int), (*attribute)(int*, int, CUdevice), (*version)(int*);
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return ht_refuse(error, HT_NO_DEVICE, "cuda:%d: no CUDA driver (%s); install the NVIDIA driver, or open the pack for the CPU",
                     ordinal, dlerror());
  *(void**)&init = dlsym(library, "cuInit");
  *(void**)&count_of = dlsym(library, "cuDeviceGetCount");
  *(void**)&get = dlsym(library, "cuDeviceGet");
  *(void**)&attribute = dlsym(library, "cuDeviceGetAttribute");
  *(void**)&version = dlsym(library, "cuDriverGetVersion");
  int count = 0;
  CUdevice device = 0;
  if (init == NULL || count_of == NULL || get == NULL || attribute == NULL || version == NULL)
    return ht_refuse(error, HT_NO_DEVICE, "cuda:%d: libcuda.so.1 is no CUDA driver", ordinal);
  CUresult result = init(0);
  if (result == CUDA_ERROR_NOT_INITIALIZED)
    return ht_refuse(error, HT_NO_DEVICE, "cuda:%d: cuInit answers CUDA_ERROR_NOT_INITIALIZED (3): a process that was forked after "
                     "CUDA began cannot use it; start it with exec", ordinal);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE)
    return ht_refuse(error, HT_NO_DEVICE, "cuda:%d: cuInit answers CUDA error %d; nvidia-smi must work first", ordinal, result);
  /* The driver knows its numbers, -1 and count are none; one that cuInit found without devices answers nothing. */
  if (count_of(&count) != CUDA_SUCCESS || get(&device, ordinal) != CUDA_SUCCESS)
    return ht_refuse(error, HT_NO_DEVICE, "there is no device cuda:%d: the CUDA driver shows %d; see nvidia-smi, CUDA_VISIBLE_DEVICES",
                     ordinal, count);
  int khz = 0, bits = 0;
  *out = (ht_gpu){.ordinal = ordinal};
  if (attribute(&out->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
      attribute(&out->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) != CUDA_SUCCESS ||
      attribute(&out->units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
      version(&out->driver) != CUDA_SUCCESS)
    return ht_refuse(error, HT_NO_DEVICE, "cuda:%d: the driver does not describe the device", ordinal);
  if (attribute(&khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device) == CUDA_SUCCESS &&
      attribute(&bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device) == CUDA_SUCCESS)
    out->gbps = 2.0 * khz * 1e3 * bits / 8 / 1e9; /* both edges of the clock */
  return HT_OK;
}

int ht_gpu_runs(const ht_gpu* gpu, const char* arch) {
  char* end;
  if (strncmp(arch, "sm_", 3) != 0) return 0;
  long number = strtol(arch + 3, &end, 10);
  if (number / 10 != gpu->major) return 0; /* 0 where there is no number, which no device is */
  return *end == 'a' ? number % 10 == gpu->minor : number % 10 <= gpu->minor;
}

ht_status ht_gpu_takes(const ht_gpu* gpu, const ht_manifest* manifest, const char* path, ht_error* error) {
  int needed = manifest->driver <= 0 ? 0 : manifest->driver < 1e6 ? (int)manifest->driver : 1000000, found = gpu->driver;
  if (needed <= found) return HT_OK;
  return ht_refuse(error, HT_PACK_MISMATCH, "%s: its %s code needs a driver for CUDA %d.%d or later, the one of this host serves CUDA "
                   "%d.%d: update the NVIDIA driver, or tune again with a CUDA %d compiler", path, manifest->arch, needed / 1000,
                   needed % 1000 / 10, found / 1000, found % 1000 / 10, found / 1000);
}

static double ratio(double here, double there) {
  if (here <= 0 || there <= 0) return 0;
  return (here > there ? here / there : there / here) - 1;
}

double ht_gpu_distance(const ht_gpu* gpu, const ht_manifest* manifest) {
  double units = ratio(gpu->units, manifest->units), gbps = ratio(gpu->gbps, manifest->gbps);
  return units > gbps ? units : gbps;
}
