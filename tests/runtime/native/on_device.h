/* What drive_fused.c, drive_generated.c, drive_grouped.c and drive_products.c share: the driver, and tensors on CUDA device 0. */
#ifndef ON_DEVICE_H_
#define ON_DEVICE_H_

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cu.h"
#include "haotuner.h"

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

static ht_cu cu;
static const DLDataType fp32 = {kDLFloat, 32, 1};

/* The driver's functions, in `cu`. */
static void find_driver(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(library != NULL);
#define FIND(field, symbol, parameters) *(void**)&cu.field = dlsym(library, #symbol);
  HT_CU_NEEDED(FIND)
  HT_CU_PERHAPS(FIND)
#undef FIND
}

/* Makes the context that the pack was opened in this thread's. */
static void enter_device(void) {
  CUdevice device;
  CUcontext context;
  CHECK(cu.DeviceGet(&device, 0) == 0 && cu.DevicePrimaryCtxRetain(&context, device) == 0 && cu.CtxPushCurrent(context) == 0);
}

/* A tensor of the device; its bytes are copied from `data` where that is not NULL. */
static DLTensor upload(const void* data, size_t bytes, DLDataType dtype, int rank, int64_t* shape) {
  CUdeviceptr at;
  CHECK(cu.MemAlloc(&at, bytes) == 0);
  if (data != NULL) CHECK(cu.MemcpyHtoDAsync(at, data, bytes, NULL) == 0);
  DLTensor t = {(void*)(size_t)at, {kDLCUDA, 0}, rank, dtype, shape, NULL, 0};
  return t;
}

#endif
