/* The CUDA driver's API as far as we call it: our own prototypes, resolved from libcuda.so.1 at run time. No toolkit is needed.
 *
 * Names and numbers are those of NVIDIA's "CUDA Driver API" manual. A name with _v2 is the ABI that CUDA 4 and later headers use. */
#ifndef HT_CU_H_
#define HT_CU_H_

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUgraphNode_st* CUgraphNode;
typedef struct CUgreenCtx_st* CUgreenCtx;
typedef struct CUdevResourceDesc_st* CUdevResourceDesc;

typedef struct { /* CUdevResource as CUDA 12.4 and later have it */
  int type;      /* CU_DEV_RESOURCE_TYPE_SM */
  unsigned char internal[92];
  union {
    unsigned sm_count;
    unsigned char room[48];
  };
} CUdevResource;

typedef struct {
#ifdef __cplusplus
  alignas(128) uint64_t opaque[16];
#else
  _Alignas(128) uint64_t opaque[16];
#endif
} CUtensorMap; /* the driver wants 64, CUDA 13's headers have 128 */

enum { /* CUresult: those that we tell apart */
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908
};

enum { /* CUdevice_attribute */
  CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
  CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
};

enum { /* CUfunction_attribute */
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
};

enum { CU_DEV_RESOURCE_TYPE_SM = 1, CU_GREEN_CTX_DEFAULT_STREAM = 1 };
enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6, CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 };
enum { CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_32B = 1, CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum { CU_TENSOR_MAP_L2_PROMOTION_NONE = 0, CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2, CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };

/* F(field of ht_cu, symbol of the library, parameters). All of HT_CU_NEEDED are there since CUDA 11.4; one of HT_CU_PERHAPS may be
 * NULL in an older driver: ask before the call. */
#define HT_CU_NEEDED(F)                                                                                                            \
  F(DriverGetVersion, cuDriverGetVersion, (int* version))                                                                          \
  F(GetErrorName, cuGetErrorName, (CUresult error, const char** text))                                                             \
  F(GetErrorString, cuGetErrorString, (CUresult error, const char** text))                                                         \
  F(DeviceGetCount, cuDeviceGetCount, (int* count))                                                                                \
  F(DeviceGet, cuDeviceGet, (CUdevice* device, int ordinal))                                                                       \
  F(DeviceGetName, cuDeviceGetName, (char* name, int size, CUdevice device))                                                       \
  F(DeviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                        \
  F(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext* context, CUdevice device))                                       \
  F(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                      \
  F(CtxGetCurrent, cuCtxGetCurrent, (CUcontext* context))                                                                          \
  F(CtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context))                                                                      \
  F(CtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext* context))                                                                       \
  F(CtxSynchronize, cuCtxSynchronize, (void))                                                                                      \
  F(ModuleLoadData, cuModuleLoadData, (CUmodule* module, const void* image))                                                       \
  F(ModuleUnload, cuModuleUnload, (CUmodule module))                                                                               \
  F(ModuleGetFunction, cuModuleGetFunction, (CUfunction* function, CUmodule module, const char* name))                             \
  F(FuncSetAttribute, cuFuncSetAttribute, (CUfunction function, int attribute, int value))                                         \
  F(FuncGetAttribute, cuFuncGetAttribute, (int* value, int attribute, CUfunction function))                                        \
  F(LaunchKernel, cuLaunchKernel,                                                                                                  \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, \
     unsigned shared_bytes, CUstream stream, void** params, void** extra))                                                         \
  F(MemAlloc, cuMemAlloc_v2, (CUdeviceptr* address, size_t bytes))                                                                 \
  F(MemFree, cuMemFree_v2, (CUdeviceptr address))                                                                                  \
  F(MemGetInfo, cuMemGetInfo_v2, (size_t* free_bytes, size_t* total_bytes))                                                        \
  F(MemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes))                                                 \
  F(MemcpyDtoH, cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes))                                                       \
  F(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))                      \
  F(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream))                            \
  F(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                      \
  F(MemsetD8Async, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                          \
  F(MemsetD32Async, cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))                             \
  F(StreamCreate, cuStreamCreate, (CUstream* stream, unsigned flags))                                                              \
  F(StreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                                                          \
  F(StreamSynchronize, cuStreamSynchronize, (CUstream stream))                                                                     \
  F(StreamQuery, cuStreamQuery, (CUstream stream))                                                                                 \
  F(StreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                          \
  F(StreamIsCapturing, cuStreamIsCapturing, (CUstream stream, int* status))                                                        \
  F(StreamBeginCapture, cuStreamBeginCapture_v2, (CUstream stream, int mode))                                                      \
  F(StreamEndCapture, cuStreamEndCapture, (CUstream stream, CUgraph* graph))                                                       \
  F(GraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec* exec, CUgraph graph, unsigned long long flags))                   \
  F(GraphLaunch, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                               \
  F(GraphExecDestroy, cuGraphExecDestroy, (CUgraphExec exec))                                                                      \
  F(GraphDestroy, cuGraphDestroy, (CUgraph graph))                                                                                 \
  F(EventCreate, cuEventCreate, (CUevent* event, unsigned flags))                                                                  \
  F(EventDestroy, cuEventDestroy_v2, (CUevent event))                                                                              \
  F(EventRecord, cuEventRecord, (CUevent event, CUstream stream))                                                                  \
  F(EventQuery, cuEventQuery, (CUevent event))                                                                                     \
  F(EventSynchronize, cuEventSynchronize, (CUevent event))                                                                         \
  F(EventElapsedTime, cuEventElapsedTime, (float* milliseconds, CUevent first, CUevent second))

#define HT_CU_PERHAPS(F)                                                                                                      \
  F(FuncLoad, cuFuncLoad, (CUfunction function))                                                                              \
  F(DeviceGetDevResource, cuDeviceGetDevResource, (CUdevice device, CUdevResource* resource, int type))                       \
  F(DevSmResourceSplitByCount, cuDevSmResourceSplitByCount,                                                                   \
    (CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource* rest, unsigned flags, unsigned least)) \
  F(DevResourceGenerateDesc, cuDevResourceGenerateDesc, (CUdevResourceDesc* made, CUdevResource* resources, unsigned count))  \
  F(GreenCtxCreate, cuGreenCtxCreate, (CUgreenCtx* green, CUdevResourceDesc of, CUdevice device, unsigned flags))             \
  F(CtxFromGreenCtx, cuCtxFromGreenCtx, (CUcontext* context, CUgreenCtx green))                                               \
  F(GreenCtxStreamCreate, cuGreenCtxStreamCreate, (CUstream* stream, CUgreenCtx green, unsigned flags, int priority))         \
  F(TensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                                             \
    (CUtensorMap* map, int type, uint32_t rank, void* address, const uint64_t* extents, const uint64_t* strides,              \
     const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion, int fill))

typedef struct { /* the driver's functions */
  CUresult (*Init)(unsigned flags);
#define HT_CU_FIELD(field, symbol, parameters) CUresult(*field) parameters;
  HT_CU_NEEDED(HT_CU_FIELD)
  HT_CU_PERHAPS(HT_CU_FIELD)
#undef HT_CU_FIELD
  int version; /* of the CUDA that the driver serves: 1000 * major + 10 * minor */
} ht_cu;

#endif /* HT_CU_H_ */
