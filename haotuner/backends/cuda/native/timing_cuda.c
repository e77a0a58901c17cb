/* Kernels launched and timed as a pack launches them: the same driver and launch code, a stream of our own, graphs and events.
 *
 * For one process and one device, opened once and current for good. Every function returns 0, or what is wrong: -1, or -2 where the
 * device is lost to this process; `htt_said` has the words. Sizes in bytes, times in microseconds, strides in elements. */
#include "cuda/generated.h"
#include "cuda/launch.h"
#include "part.h"

#include <stdlib.h>
#include <string.h>

#define HTT_EXPORT __attribute__((visibility("default")))
#define HTT_REGIONS 2
#define TRY(call, doing)                              \
  do {                                                \
    const CUresult result_ = (call);                  \
    if (result_ != CUDA_SUCCESS) return failed(result_, doing); \
  } while (0)

typedef struct { /* as Python has it: one region of a composition */
  ht_cuda_kernel kernel;
  CUfunction function;
  int64_t rows;
} htt_region;

typedef struct { /* a generated program's call */
  ht_cuda_generated_kernel kernel;
  ht_generated_args args;
  int64_t shape[HT_GENERATED_AXES]; /* of the output */
  int32_t rank;
  float* partial; /* for parts of a fold, or NULL */
} htt_generated;

typedef struct { /* one composition of a shape, on weights that take turns */
  int32_t regions, weights;
  htt_region region[HTT_REGIONS];
  CUfunction reduce;
  ht_cuda_args args; /* of the whole shape; w is ignored */
  const uint64_t* w; /* addresses of the weights */
  ht_cuda_groups groups; /* of a kernel that takes them */
  ht_cuda_batch batch;   /* likewise, */
  int64_t matrices;      /* of so many */
  const htt_generated* generated; /* instead of the arguments, or NULL */
  const ht_cuda_direct* direct;   /* of a convolution without columns, beside the arguments, or NULL */
  const ht_cuda_windows* windows; /* of a kernel that takes them, or NULL */
} htt_call;

static struct {
  const ht_cu* cu;
  CUstream stream;
  CUevent first, last;
  CUgraphExec graph;
  CUtensorMap* maps; /* [weights][regions], of the call that is timed */
  int units;
  ht_error error;
  int lost;
} self;

static int failed(CUresult result, const char* doing) {
  self.lost |= ht_cu_sticky(result);
  ht_cu_refuse(&self.error, result, doing);
  return self.lost ? -2 : -1;
}

HTT_EXPORT const char* htt_said(void) { return self.error.text; }

/* Open device `ordinal`, or a part of so many of its multiprocessors where `units` is not 0; facts: units, L2 bytes, major, minor, version of the driver. */
HTT_EXPORT int htt_open(int ordinal, int units, int64_t facts[5]) {
  ht_cuda_scope scope; /* never left: this process serves one device */
  if ((self.cu = ht_cu_load(&self.error)) == NULL) return -1;
  const ht_cuda_device* device = ht_cuda_open(ordinal, &self.error);
  if (device == NULL) return -1;
  ht_cuda_device part = *device; /* with the context of the part: the device's own stays the primary one */
  if (units != 0) {
    if (htt_part(self.cu, ordinal, units, &part.context, &self.stream, &self.error) != 0) return -1;
    part.units = units;
  }
  self.units = part.units;
  if (ht_cuda_enter(&part, &scope, &self.error) != 0) return -1;
  CUdevice handle;
  int l2 = 0;
  TRY(self.cu->DeviceGet(&handle, ordinal), "cuDeviceGet");
  TRY(self.cu->DeviceGetAttribute(&l2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, handle), "asking for the size of the L2");
  if (units == 0) TRY(self.cu->StreamCreate(&self.stream, CU_STREAM_NON_BLOCKING), "creating a stream");
  TRY(self.cu->EventCreate(&self.first, CU_EVENT_DEFAULT), "creating an event");
  TRY(self.cu->EventCreate(&self.last, CU_EVENT_DEFAULT), "creating an event");
  facts[0] = part.units, facts[1] = l2, facts[2] = device->major, facts[3] = device->minor, facts[4] = self.cu->version;
  return 0;
}

HTT_EXPORT int htt_load(const void* image, CUmodule* module) {
  return ht_cuda_load_module(image, module, &self.error) == 0 ? 0 : -1;
}

/* A function of a module; facts: registers of a thread, bytes of its local memory, static shared bytes of a block. */
HTT_EXPORT int htt_function(CUmodule module, const char* symbol, int32_t shared_bytes, CUfunction* function, int32_t facts[3]) {
  if (ht_cuda_function(module, symbol, shared_bytes, function, &self.error) != 0) return -1;
  TRY(self.cu->FuncGetAttribute(&facts[0], CU_FUNC_ATTRIBUTE_NUM_REGS, *function), "asking for registers");
  TRY(self.cu->FuncGetAttribute(&facts[1], CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *function), "asking for local memory");
  TRY(self.cu->FuncGetAttribute(&facts[2], CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function), "asking for shared memory");
  return 0;
}

HTT_EXPORT int htt_allocate(int64_t bytes, uint64_t* address) {
  TRY(self.cu->MemAlloc(address, (size_t)bytes), "allocating memory of the device");
  return 0;
}

HTT_EXPORT int htt_free(uint64_t address) {
  TRY(self.cu->MemFree(address), "freeing memory of the device");
  return 0;
}

static int waited(void) {
  TRY(self.cu->StreamSynchronize(self.stream), "running a kernel");
  return 0;
}

HTT_EXPORT int htt_upload(uint64_t to, const void* from, int64_t bytes) {
  TRY(self.cu->MemcpyHtoDAsync(to, from, (size_t)bytes, self.stream), "copying to the device");
  return waited();
}

HTT_EXPORT int htt_copy(uint64_t to, uint64_t from, int64_t bytes) {
  TRY(self.cu->MemcpyDtoDAsync(to, from, (size_t)bytes, self.stream), "copying on the device");
  return waited();
}

HTT_EXPORT int htt_download(void* to, uint64_t from, int64_t bytes) {
  TRY(self.cu->MemcpyDtoHAsync(to, from, (size_t)bytes, self.stream), "copying from the device");
  return waited();
}

HTT_EXPORT int htt_fill(uint64_t to, int value, int64_t bytes) {
  TRY(self.cu->MemsetD8Async(to, (unsigned char)value, (size_t)bytes, self.stream), "filling memory of the device");
  return waited();
}

/* Maps of all weights for all regions, as binding a weight makes them. */
static int encode(const htt_call* call) {
  CUtensorMap* maps = aligned_alloc(128, sizeof(CUtensorMap) * (size_t)(call->weights * HTT_REGIONS));
  if (maps == NULL) return ht_refuse(&self.error, "RuntimeError", "no memory for tensor maps"), -1;
  free(self.maps);
  self.maps = maps;
  for (int w = 0; w < call->weights; ++w)
    for (int r = 0; r < call->regions; ++r)
      if (call->region[r].kernel.maps && ht_cuda_encode_w(&maps[w * HTT_REGIONS + r], &call->region[r].kernel, (const void*)call->w[w],
                                                          call->region[r].kernel.groups ? call->groups.count : 1,
                                                          call->args.n, call->args.k, &self.error) != 0)
        return -1;
  return 0;
}

static int launch(const htt_call* call, int weight) {
  if (call->generated != NULL)
    return ht_cuda_launch_generated(&call->generated->kernel, call->region[0].function, &call->generated->args, call->generated->shape,
                                    call->generated->rank, self.units, call->generated->partial, self.stream, &self.error);
  ht_cuda_args args = call->args;
  args.w = (const void*)call->w[weight];
  if (call->direct != NULL)
    return ht_cuda_launch_direct(&call->region[0].kernel, call->region[0].function, call->direct, &args, self.units, self.stream, &self.error);
  int64_t row = 0;
  for (int r = 0; r < call->regions; ++r) {
    const htt_region* region = &call->region[r];
    const int64_t element = ht_cuda_bytes(region->kernel.dtype);
    args.x = (const char*)call->args.x + row * args.ldx * element;
    const int64_t written = ht_cuda_y_bytes(region->kernel.dtype, args.y_type);
    args.y = (char*)call->args.y + row * args.ldy * written;
    if (args.residual != NULL)
      args.residual = (const char*)call->args.residual + row * args.ldy * ht_cuda_residual_bytes(region->kernel.dtype, args.y_type);
    args.m = (int32_t)region->rows;
    if (call->windows != NULL) {
      if (ht_cuda_windows_fit(&region->kernel, &args, call->windows, &self.error) != 0) return -1;
      return ht_cuda_launch_windows(&region->kernel, region->function, &args, &call->batch, call->windows, call->matrices, self.stream, &self.error);
    }
    if (ht_cuda_fits(&region->kernel, &args, &self.error) != 0) return -1;
    if (region->kernel.groups) {
      if (ht_cuda_launch_groups(&region->kernel, region->function, &args, &call->groups, &self.maps[weight * HTT_REGIONS + r], self.stream,
                                &self.error) != 0)
        return -1;
    } else if (region->kernel.batch) {
      if (ht_cuda_launch_batch(&region->kernel, region->function, &args, &call->batch, call->matrices, self.stream, &self.error) != 0) return -1;
    } else if (ht_cuda_launch(&region->kernel, region->function, &args, &self.maps[weight * HTT_REGIONS + r], self.stream, call->reduce,
                       &self.error) != 0)
      return -1;
    row += region->rows;
  }
  return 0;
}

/* One call, waited for. */
HTT_EXPORT int htt_run(const htt_call* call) {
  if (encode(call) != 0 || launch(call, 0) != 0) return -1;
  return waited();
}

static int between(double* us) {
  float ms = 0;
  TRY(self.cu->EventRecord(self.last, self.stream), "recording an event");
  TRY(self.cu->EventSynchronize(self.last), "running a kernel");
  TRY(self.cu->EventElapsedTime(&ms, self.first, self.last), "reading a time");
  *us = (double)ms * 1e3;
  return 0;
}

static void drop(void) {
  if (self.graph != NULL) self.cu->GraphExecDestroy(self.graph);
  self.graph = NULL;
}

/* One call's time on the stream, and a graph of `launches` calls in turn over the weights, replayed once. */
HTT_EXPORT int htt_once(const htt_call* call, double* us) {
  if (encode(call) != 0 || launch(call, 0) != 0 || waited() != 0) return self.lost ? -2 : -1;
  TRY(self.cu->EventRecord(self.first, self.stream), "recording an event");
  if (launch(call, call->weights > 1) != 0) return -1;
  return between(us);
}

static int captured(const htt_call* call, int launches, CUgraph* graph) {
  int rc = 0;
  TRY(self.cu->StreamBeginCapture(self.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "beginning a capture");
  for (int i = 0; i < launches && rc == 0; ++i) rc = launch(call, i % call->weights);
  const CUresult result = self.cu->StreamEndCapture(self.stream, graph);
  if (rc != 0) return rc;
  return result == CUDA_SUCCESS ? 0 : failed(result, "ending a capture");
}

HTT_EXPORT int htt_prepare(const htt_call* call, int launches) {
  CUgraph graph = NULL;
  drop();
  int rc = encode(call);
  if (rc == 0) rc = captured(call, launches, &graph);
  if (rc == 0) {
    const CUresult result = self.cu->GraphInstantiate(&self.graph, graph, 0);
    if (result != CUDA_SUCCESS) rc = failed(result, "instantiating a graph");
  }
  if (graph != NULL) self.cu->GraphDestroy(graph);
  if (rc != 0) return rc;
  TRY(self.cu->GraphLaunch(self.graph, self.stream), "launching a graph"); /* the first replay uploads it */
  return waited();
}

/* The time of one replay of the prepared graph. */
HTT_EXPORT int htt_replay(double* us) {
  TRY(self.cu->EventRecord(self.first, self.stream), "recording an event");
  TRY(self.cu->GraphLaunch(self.graph, self.stream), "launching a graph");
  return between(us);
}

HTT_EXPORT int htt_lost(void) { return self.lost; }
