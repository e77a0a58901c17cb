// Device facts, memory, streams, graphs and events.
#include "probe_launch.h"

#include <cstdio>
#include <cstring>
#include <vector>

namespace {
cudaEvent_t g_marks[2];

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return value;
}
}  // namespace

cudaError_t probe_new_marks() {
    cudaError_t error = cudaSuccess;
    for (cudaEvent_t& mark : g_marks)
        if (error == cudaSuccess) error = cudaEventCreate(&mark);
    return error;
}

PROBE_API int probe_open(int device, ProbeFacts* facts) {
    std::memset(facts, 0, sizeof *facts);
    cudaDriverGetVersion(&facts->driver);
    cudaRuntimeGetVersion(&facts->runtime);
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess) error = device < count ? cudaSetDevice(device) : cudaErrorInvalidDevice;
    cudaDeviceProp properties;
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) return error;
    std::snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    for (int i = 0; i < 16; i++) std::snprintf(facts->uuid + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
    facts->major = properties.major;
    facts->minor = properties.minor;
    facts->units = properties.multiProcessorCount;
    facts->threads_per_unit = properties.maxThreadsPerMultiProcessor;
    facts->threads_per_block = properties.maxThreadsPerBlock;
    facts->registers_per_unit = properties.regsPerMultiprocessor;
    facts->memory_bytes = (int64_t)properties.totalGlobalMem;
    facts->l2_bytes = properties.l2CacheSize;
    facts->shared_per_unit = (int64_t)properties.sharedMemPerMultiprocessor;
    facts->shared_per_block = (int64_t)properties.sharedMemPerBlockOptin;
    facts->memory_bus_bits = properties.memoryBusWidth;
    facts->clock_khz = attribute(cudaDevAttrClockRate, device);
    facts->memory_clock_khz = attribute(cudaDevAttrMemoryClockRate, device);
    return probe_new_marks();
}

PROBE_API const char* probe_error(int code) { return cudaGetErrorName((cudaError_t)code); }

PROBE_API int probe_allocate(void** memory, int64_t bytes) {
    const cudaError_t error = cudaMalloc(memory, (size_t)bytes);
    cudaGetLastError();  // being out of memory is an answer, not a state
    return error;
}

PROBE_API int probe_release(void* memory) { return cudaFree(memory); }

PROBE_API int probe_stream(void** stream) {
    return cudaStreamCreateWithFlags((cudaStream_t*)stream, cudaStreamNonBlocking);
}

PROBE_API int probe_finish(void* stream) {
    const cudaError_t ran = cudaStreamSynchronize((cudaStream_t)stream);
    const cudaError_t launched = cudaGetLastError();
    return ran != cudaSuccess ? ran : launched;
}

PROBE_API int probe_set(void* memory, int byte, int64_t bytes, void* stream) {
    return cudaMemsetAsync(memory, byte, (size_t)bytes, (cudaStream_t)stream);
}

PROBE_API int probe_capture(void* stream) {
    return cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal);
}

PROBE_API int probe_captured(void* stream, void** graph) {
    cudaGraph_t captured = nullptr;
    cudaError_t error = cudaStreamEndCapture((cudaStream_t)stream, &captured);
    if (error == cudaSuccess) error = cudaGraphInstantiate((cudaGraphExec_t*)graph, captured, 0);
    if (captured != nullptr) cudaGraphDestroy(captured);
    return error;
}

PROBE_API int probe_release_graph(void* graph) { return cudaGraphExecDestroy((cudaGraphExec_t)graph); }

PROBE_API int probe_replay(void* graph, void* stream, int samples, float* microseconds) {
    std::vector<cudaEvent_t> events((size_t)samples + 1);
    cudaError_t error = cudaSuccess;
    for (cudaEvent_t& event : events)
        if (error == cudaSuccess) error = cudaEventCreate(&event);
    if (error == cudaSuccess) error = cudaEventRecord(events[0], (cudaStream_t)stream);
    for (int i = 0; i < samples && error == cudaSuccess; i++) {
        error = cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream);
        if (error == cudaSuccess) error = cudaEventRecord(events[(size_t)i + 1], (cudaStream_t)stream);
    }
    if (error == cudaSuccess) error = cudaEventSynchronize(events.back());
    for (int i = 0; i < samples && error == cudaSuccess; i++) {
        float milliseconds = 0;
        error = cudaEventElapsedTime(&milliseconds, events[(size_t)i], events[(size_t)i + 1]);
        microseconds[i] = milliseconds * 1000.0f;
    }
    for (cudaEvent_t event : events)
        if (event != nullptr) cudaEventDestroy(event);
    return error;
}

PROBE_API int probe_mark(void* stream, int which) { return cudaEventRecord(g_marks[which], (cudaStream_t)stream); }

PROBE_API int probe_between(float* microseconds) {
    float milliseconds = 0;
    cudaError_t error = cudaEventSynchronize(g_marks[1]);
    if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, g_marks[0], g_marks[1]);
    *microseconds = milliseconds * 1000.0f;
    return error;
}
