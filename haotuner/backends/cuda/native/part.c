/* See part.h. The part stays for the process. */
#include "part.h"

#define TRY(call, doing)                                                             \
  do {                                                                               \
    const CUresult result_ = (call);                                                 \
    if (result_ != CUDA_SUCCESS) return ht_cu_refuse(error, result_, doing);         \
  } while (0)

int htt_part(const ht_cu* cu, int ordinal, int units, CUcontext* context, CUstream* stream, ht_error* error) {
  if (cu->GreenCtxCreate == NULL || cu->CtxFromGreenCtx == NULL || cu->GreenCtxStreamCreate == NULL || cu->DeviceGetDevResource == NULL ||
      cu->DevSmResourceSplitByCount == NULL || cu->DevResourceGenerateDesc == NULL || cu->version < 12040)
    return ht_refuse(error, "RuntimeError",
                     "a part of a device wants a driver for CUDA 12.4 or later (550), this one serves CUDA %d.%d: update the driver",
                     cu->version / 1000, cu->version % 1000 / 10);
  CUdevice device;
  CUdevResource all = {0}, part = {0};
  CUdevResourceDesc description;
  CUgreenCtx green;
  unsigned groups = 1;
  TRY(cu->DeviceGet(&device, ordinal), "cuDeviceGet");
  TRY(cu->DeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "asking for the multiprocessors of a device");
  TRY(cu->DevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, (unsigned)units), "splitting off a part of a device");
  if (part.sm_count != (unsigned)units) /* 0 where there is no group at all */
    return ht_refuse(error, "RuntimeError", "cuda:%d has no part of %d multiprocessors; the least that holds as many has %u: ask for "
                     "cuda:%d/%u", ordinal, units, part.sm_count, ordinal, part.sm_count);
  TRY(cu->DevResourceGenerateDesc(&description, &part, 1), "describing a part of a device");
  TRY(cu->GreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "creating a context of a part of a device");
  TRY(cu->CtxFromGreenCtx(context, green), "cuCtxFromGreenCtx");
  TRY(cu->GreenCtxStreamCreate(stream, green, CU_STREAM_NON_BLOCKING, 0), "creating a stream of a part of a device");
  return 0;
}
