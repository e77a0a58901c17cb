/* See driver.h. Nothing is ever closed: other users of the process share the driver, and graphs may replay what was loaded. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { FRESH = 0, BUSY = 1, READY = 2, FORKED = 3 };

static struct {
  atomic_int state;
  int watched; /* the fork handler is in place; written while BUSY only */
  ht_cu functions;
} driver;

static struct {
  atomic_int state;
  ht_cuda_device device;
} devices[HT_CUDA_DEVICES];

static void forked(void) { /* in the child: its contexts do not exist, and the driver cannot begin anew */
  if (atomic_load(&driver.state) != FRESH) atomic_store(&driver.state, FORKED);
}

/* FRESH -> BUSY for the caller (1), or what another thread made of it (0). */
static int begin(atomic_int* state) {
  for (;;) {
    int found = FRESH;
    if (atomic_compare_exchange_strong(state, &found, BUSY)) return 1;
    if (found != BUSY) return 0;
    if (atomic_load(&driver.state) == FORKED) return 0; /* who was busy is not in this process */
    sched_yield();
  }
}

static int find_functions(ht_error* error) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return ht_refuse(error, "RuntimeError", "no CUDA driver: %.120s; install the NVIDIA driver, or serve on the CPU", dlerror());
  const char* absent = NULL;
#define FIND(field, name) *(void**)&driver.functions.field = dlsym(library, name)
#define NEED(field, symbol, parameters) \
  if ((FIND(field, #symbol)) == NULL) absent = #symbol;
#define TRY(field, symbol, parameters) FIND(field, #symbol);
  if ((FIND(Init, "cuInit")) == NULL) absent = "cuInit";
  HT_CU_NEEDED(NEED)
  HT_CU_PERHAPS(TRY)
  if (absent == NULL) return 0;
  return ht_refuse(error, "RuntimeError", "the CUDA driver is too old: it lacks %s; install one for CUDA 11.4 or later", absent);
}

static int start(ht_error* error) {
  if (find_functions(error) != 0) return -1;
  if (!driver.watched && pthread_atfork(NULL, NULL, forked) == 0) driver.watched = 1;
  CUresult result = driver.functions.Init(0);
  if (result == CUDA_ERROR_NO_DEVICE)
    return ht_refuse(error, "RuntimeError", "the CUDA driver shows no device (CUDA_ERROR_NO_DEVICE, 100); see nvidia-smi and CUDA_VISIBLE_DEVICES");
  if (result == CUDA_ERROR_NOT_INITIALIZED)
    return ht_refuse(error, "RuntimeError",
                     "cuInit: CUDA_ERROR_NOT_INITIALIZED (3): was CUDA used before this process was forked? start it with spawn");
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "cuInit");
  result = driver.functions.DriverGetVersion(&driver.functions.version);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "cuDriverGetVersion");
}

const ht_cu* ht_cu_load(ht_error* error) {
  if (atomic_load_explicit(&driver.state, memory_order_acquire) == READY) return &driver.functions;
  if (begin(&driver.state)) {
    int failed = start(error) != 0;
    atomic_store_explicit(&driver.state, failed ? FRESH : READY, memory_order_release);
    return failed ? NULL : &driver.functions;
  }
  if (atomic_load(&driver.state) == READY) return &driver.functions;
  ht_refuse(error, "RuntimeError",
            "CUDA was used before this process was forked, and a fork cannot use it: start the process with spawn, or load the pack "
            "only after the fork");
  return NULL;
}

int ht_cu_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case 220: /* NVLink, uncorrectable */
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return 1;
    default:
      return 0;
  }
}

static const char* advice(CUresult result) {
  if (ht_cu_sticky(result)) return "the device is lost to this process, this call may not be the cause: end the process and start another";
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "free memory of the device, or use another";
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
      return "is the stream alive, and one of this device's primary context (that of torch, CuPy and the CUDA runtime)?";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_IMAGE:
      return "the pack's code does not fit this device or this driver: tune for it, or update the driver";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "update the driver";
    case CUDA_ERROR_NOT_FOUND:
      return "the pack is damaged: run haotuner verify";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "the kernel wants more registers or shared memory than the device has: the pack is for another device";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
      return "a stream is being captured: load, bind and warm up before the capture, and call on the captured stream";
    case CUDA_ERROR_INVALID_DEVICE:
      return "name one of the devices that nvidia-smi shows";
    default:
      return "see the CUDA driver's manual";
  }
}

int ht_cu_refuse(ht_error* error, CUresult result, const char* doing) {
  const char* name = NULL;
  if (driver.functions.GetErrorName(result, &name) != CUDA_SUCCESS) name = NULL;
  return ht_refuse(error, "RuntimeError", "%s: %.60s (%d): %s", doing, name == NULL ? "a CUDA error" : name, result, advice(result));
}

const ht_cuda_device* ht_cuda_opened(int ordinal) {
  if (ordinal < 0 || ordinal >= HT_CUDA_DEVICES) return NULL;
  if (atomic_load_explicit(&driver.state, memory_order_relaxed) != READY) return NULL;
  return atomic_load_explicit(&devices[ordinal].state, memory_order_acquire) == READY ? &devices[ordinal].device : NULL;
}

static int open_device(const ht_cu* cu, int ordinal, ht_cuda_device* out, ht_error* error) {
  CUdevice device;
  CUresult result;
  out->ordinal = ordinal;
  if ((result = cu->DeviceGet(&device, ordinal)) != CUDA_SUCCESS) return ht_cu_refuse(error, result, "cuDeviceGet");
  const struct {
    int* value;
    int attribute;
  } facts[] = {{&out->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
               {&out->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
               {&out->units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
               {&out->shared_limit, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN}};
  for (size_t i = 0; i < sizeof facts / sizeof *facts; ++i)
    if ((result = cu->DeviceGetAttribute(facts[i].value, facts[i].attribute, device)) != CUDA_SUCCESS)
      return ht_cu_refuse(error, result, "cuDeviceGetAttribute");
  if ((result = cu->DevicePrimaryCtxRetain(&out->context, device)) != CUDA_SUCCESS)
    return ht_cu_refuse(error, result, "cuDevicePrimaryCtxRetain");
  return 0;
}

const ht_cuda_device* ht_cuda_open(int ordinal, ht_error* error) {
  const ht_cu* cu = ht_cu_load(error);
  int count = 0;
  if (cu == NULL) return NULL;
  if (ht_cuda_opened(ordinal) != NULL) return ht_cuda_opened(ordinal);
  CUresult result = cu->DeviceGetCount(&count);
  if (result != CUDA_SUCCESS) {
    ht_cu_refuse(error, result, "cuDeviceGetCount");
    return NULL;
  }
  if (count > HT_CUDA_DEVICES) count = HT_CUDA_DEVICES;
  if (ordinal < 0 || ordinal >= count) {
    ht_refuse(error, "ValueError", "there is no device cuda:%d: the driver shows %d", ordinal, count);
    return NULL;
  }
  if (begin(&devices[ordinal].state)) {
    int failed = open_device(cu, ordinal, &devices[ordinal].device, error) != 0;
    atomic_store_explicit(&devices[ordinal].state, failed ? FRESH : READY, memory_order_release);
  }
  return ht_cuda_opened(ordinal);
}

int ht_cuda_enter(const ht_cuda_device* device, ht_cuda_scope* scope, ht_error* error) {
  CUcontext current = NULL;
  scope->pushed = 0;
  CUresult result = driver.functions.CtxGetCurrent(&current);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "cuCtxGetCurrent");
  if (current == device->context) return 0;
  if ((result = driver.functions.CtxPushCurrent(device->context)) != CUDA_SUCCESS)
    return ht_cu_refuse(error, result, "cuCtxPushCurrent");
  scope->pushed = 1;
  return 0;
}

void ht_cuda_leave(const ht_cuda_scope* scope) {
  CUcontext gone;
  if (scope->pushed) driver.functions.CtxPopCurrent(&gone);
}

int ht_cuda_load_module(const void* image, CUmodule* module, ht_error* error) {
  CUresult result = driver.functions.ModuleLoadData(module, image);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "cuModuleLoadData");
}

/* The driver may load a function only when it is launched first, which a capture does not allow: its registers are asked for, and
 * it is loaded where the driver (12.4) can be told to. */
int ht_cuda_function(CUmodule module, const char* symbol, int32_t shared_bytes, CUfunction* function, ht_error* error) {
  int registers;
  CUresult result = driver.functions.ModuleGetFunction(function, module, symbol);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "cuModuleGetFunction");
  result = driver.functions.FuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, *function);
  if (result == CUDA_SUCCESS && driver.functions.FuncLoad != NULL) result = driver.functions.FuncLoad(*function);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "loading a kernel");
  if (shared_bytes <= 48 * 1024) return 0; /* what every launch may have */
  result = driver.functions.FuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "cuFuncSetAttribute");
}
