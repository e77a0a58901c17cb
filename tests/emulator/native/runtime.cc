// The part of the CUDA runtime that the launchers and the bundle's probe call. Streams execute at once; a capturing stream
// collects its work instead, and a graph replays it. What a real machine can lack is set by the environment:
//   EMULATOR_DRIVER=none | <version, as 12040>    EMULATOR_ARCH=<90>    EMULATOR_MEMORY_BYTES=<n>    EMULATOR_SUBSETS=none
#include "machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

namespace {

struct Stream {
    bool capturing = false;
    unsigned multiprocessors;
    std::vector<std::function<void()>> captured;
};
struct Graph {
    std::vector<std::function<void()>> work;
};
struct Event {
    std::chrono::steady_clock::time_point when;
};
struct Block {
    void* base;
    size_t mapped, bytes;
};

constexpr unsigned kUnits = 4;  // multiprocessors: few, so that tiny grids still have waves and subsets
constexpr int kOldestDriver = 13000;
constexpr size_t kSharedOptin = 232448;

std::map<void*, Block> g_blocks;
size_t g_used = 0;
cudaError_t g_last = cudaSuccess;
Stream g_default_stream{false, kUnits, {}};

const char* setting(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value ? value : otherwise;
}
int driver_version() {
    const std::string value = setting("EMULATOR_DRIVER", "13000");
    return value == "none" ? 0 : std::atoi(value.c_str());
}
size_t memory_bytes() { return std::strtoull(setting("EMULATOR_MEMORY_BYTES", "2000000000"), nullptr, 10); }
int arch() { return std::atoi(setting("EMULATOR_ARCH", "90")); }

Stream& stream_of(cudaStream_t stream) { return stream ? *reinterpret_cast<Stream*>(stream) : g_default_stream; }

cudaError_t failed(cudaError_t error) {
    if (error != cudaSuccess) g_last = error;
    return error;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
    Stream& to = stream_of(stream);
    if (to.capturing)
        to.captured.push_back(std::move(work));
    else
        work();
    return cudaSuccess;
}

}  // namespace

// Memory whose end, rounded up to `alignment`, meets a page that may not be touched.
extern "C" void* emulator_allocate(size_t bytes, size_t alignment) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    const size_t body = (rounded + page - 1) / page * page;
    auto* base = static_cast<unsigned char*>(
        mmap(nullptr, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base == MAP_FAILED) return nullptr;
    mprotect(base, page, PROT_NONE);
    mprotect(base + page + body, page, PROT_NONE);
    void* memory = base + page + body - rounded;
    g_blocks[memory] = {base, body + 2 * page, bytes};
    g_used += bytes;
    return memory;
}

extern "C" void emulator_release(void* memory) {
    auto found = g_blocks.find(memory);
    if (found == g_blocks.end()) emu::die("released memory that was not allocated");
    munmap(found->second.base, found->second.mapped);
    g_used -= found->second.bytes;
    g_blocks.erase(found);
}

namespace emu {
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> body) {
    const dim3 grid = config.gridDim, extent = config.blockDim;
    const size_t dynamic_bytes = config.dynamicSmemBytes;
    if (!grid.x || !grid.y || !grid.z || extent.x * extent.y * extent.z > 1024 || dynamic_bytes > kSharedOptin)
        return failed(cudaErrorInvalidConfiguration);
    const unsigned units = stream_of(config.stream).multiprocessors;
    return submit(config.stream, [=] { execute(grid, extent, dynamic_bytes, units, body); });
}
}  // namespace emu

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
    *version = driver_version();
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = kOldestDriver;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    if (driver_version() < kOldestDriver) return failed(cudaErrorInsufficientDriver);  // also without any, as the real one
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    int count;
    const cudaError_t error = cudaGetDeviceCount(&count);
    return error != cudaSuccess ? error : device < count ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "Emulated GPU");
    properties->major = arch() / 10;
    properties->minor = arch() % 10;
    properties->multiProcessorCount = static_cast<int>(kUnits);
    properties->totalGlobalMem = memory_bytes();
    properties->l2CacheSize = 1 << 16;  // tiny, so that rotating over more than the cache stays cheap
    properties->sharedMemPerMultiprocessor = 233472;
    properties->sharedMemPerBlockOptin = kSharedOptin;
    properties->regsPerMultiprocessor = 65536;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxThreadsPerBlock = 1024;
    properties->warpSize = 32;
    properties->memoryBusWidth = 64;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrClockRate         ? 1000000
             : attribute == cudaDevAttrMemoryClockRate ? 1000000
                                                       : 0;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
    *memory = nullptr;
    if (g_used + bytes > memory_bytes()) return failed(cudaErrorMemoryAllocation);
    *memory = emulator_allocate(bytes, 256);  // cudaMalloc's own alignment
    return *memory ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
    if (memory) emulator_release(memory);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = memory_bytes();
    *free_bytes = *total - g_used;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return submit(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
    return submit(stream, [=] { std::memset(memory, value, bytes); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = reinterpret_cast<cudaStream_t>(new Stream{false, kUnits, {}});
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete &stream_of(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    Stream& to = stream_of(stream);
    if (!stream || to.capturing) return failed(cudaErrorStreamCaptureUnsupported);
    to.capturing = true;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    Stream& from = stream_of(stream);
    from.capturing = false;
    *graph = reinterpret_cast<cudaGraph_t>(new Graph{std::move(from.captured)});
    from.captured.clear();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
    for (auto& work : reinterpret_cast<Graph*>(executable)->work) work();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete reinterpret_cast<Graph*>(executable);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    *event = reinterpret_cast<cudaEvent_t>(new Event{});
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return submit(stream, [=] { reinterpret_cast<Event*>(event)->when = std::chrono::steady_clock::now(); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
    const auto passed = reinterpret_cast<Event*>(last)->when - reinterpret_cast<Event*>(first)->when;
    *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete reinterpret_cast<Event*>(event);
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
    const bool too_much =
        attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > static_cast<int>(kSharedOptin);
    return too_much ? failed(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaGetLastError() {
    const cudaError_t error = g_last;
    g_last = cudaSuccess;
    return error;
}

// Green contexts: a subset is a number of multiprocessors, a stream in it deals its blocks to those alone.
static CUresult emu_resource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
    std::memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = kUnits;
    return CUDA_SUCCESS;
}
static CUresult emu_split(CUdevResource* part, unsigned* groups, const CUdevResource* whole, CUdevResource*, unsigned,
                          unsigned units) {
    if (*groups != 1 || units > whole->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    *part = *whole;
    part->sm.smCount = units;
    return CUDA_SUCCESS;
}
static CUresult emu_describe(CUdevResourceDesc* description, CUdevResource* part, unsigned) {
    *description = reinterpret_cast<CUdevResourceDesc>(static_cast<uintptr_t>(part->sm.smCount));
    return CUDA_SUCCESS;
}
static CUresult emu_green(CUgreenCtx* context, CUdevResourceDesc description, CUdevice, unsigned) {
    *context = reinterpret_cast<CUgreenCtx>(description);
    return CUDA_SUCCESS;
}
static CUresult emu_green_stream(CUstream* stream, CUgreenCtx context, unsigned, int) {
    *stream = reinterpret_cast<CUstream>(new Stream{false, static_cast<unsigned>(reinterpret_cast<uintptr_t>(context)), {}});
    return CUDA_SUCCESS;
}
static CUresult emu_plain(CUcontext* plain, CUgreenCtx context) {
    *plain = reinterpret_cast<CUcontext>(context);
    return CUDA_SUCCESS;
}
static CUresult emu_make_current(CUcontext) { return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
    const std::map<std::string, void*> known = {
        {"cuDeviceGetDevResource", reinterpret_cast<void*>(&emu_resource)},
        {"cuDevSmResourceSplitByCount", reinterpret_cast<void*>(&emu_split)},
        {"cuDevResourceGenerateDesc", reinterpret_cast<void*>(&emu_describe)},
        {"cuGreenCtxCreate", reinterpret_cast<void*>(&emu_green)},
        {"cuGreenCtxStreamCreate", reinterpret_cast<void*>(&emu_green_stream)},
        {"cuCtxFromGreenCtx", reinterpret_cast<void*>(&emu_plain)},
        {"cuCtxSetCurrent", reinterpret_cast<void*>(&emu_make_current)},
    };
    const auto found = known.find(name);
    const bool lacking = found == known.end() || std::strcmp(setting("EMULATOR_SUBSETS", ""), "none") == 0;
    *function = lacking ? nullptr : found->second;
    *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        default: return "cudaErrorUnknown";
    }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "emulated driver error";
    return CUDA_SUCCESS;
}

}  // extern "C"
