// What the bundle asks of a GPU, as plain C functions for ctypes. Built once an architecture; the CUDA runtime is inside, so
// only the driver is needed. Every function returns a cudaError_t (0 is success) unless it says otherwise.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

#define PROBE_API extern "C" __attribute__((visibility("default")))

enum ProbeType { PROBE_FP32 = 0, PROBE_FP16 = 1, PROBE_BF16 = 2 };

// Filled by probe_open; 0 where the runtime did not answer.
struct ProbeFacts {
    char name[256];
    char uuid[64];
    int driver, runtime;  // 13000 is 13.0
    int major, minor;
    int units;
    int threads_per_unit, threads_per_block, registers_per_unit;
    int64_t memory_bytes, l2_bytes, shared_per_unit, shared_per_block;
    int clock_khz, memory_clock_khz, memory_bus_bits;
};

// One comparison with the float64 reference; error is a share of the tolerance.
struct ProbeVerdict {
    double max_error;
    int64_t wrong;      // elements over the tolerance, unwritten ones among them
    int64_t unwritten;  // elements that still hold the poison
};

PROBE_API int probe_open(int device, ProbeFacts* facts);
PROBE_API const char* probe_error(int code);
PROBE_API int probe_allocate(void** memory, int64_t bytes);
PROBE_API int probe_release(void* memory);
PROBE_API int probe_stream(void** stream);
PROBE_API int probe_finish(void* stream);  // waits; any error of what ran comes back here
PROBE_API int probe_set(void* memory, int byte, int64_t bytes, void* stream);

PROBE_API int probe_capture(void* stream);
PROBE_API int probe_captured(void* stream, void** graph);
PROBE_API int probe_release_graph(void* graph);
PROBE_API int probe_replay(void* graph, void* stream, int samples, float* microseconds);  // each replay by its own events
PROBE_API int probe_mark(void* stream, int which);                                        // one of two events
PROBE_API int probe_between(float* microseconds);                                         // waits for the second

// Values of a fixed sequence: pattern 0 spreads over (-1, 1), pattern 1 takes -1, 0 and 1, whose products sum exactly.
PROBE_API int probe_fill(void* memory, int64_t count, int type, int pattern, uint32_t seed, void* stream);
PROBE_API int probe_compare(const void* x, const void* w, const void* y, int m, int n, int k, int x_stride, int y_stride,
                            int type, int weight_is_kn, ProbeVerdict* verdict, void* stream);
// Bytes that differ from `byte` in `rows` runs of `bytes`, `pitch` bytes apart.
PROBE_API int probe_changed(const void* memory, int64_t rows, int64_t bytes, int64_t pitch, int byte, int64_t* changed,
                            void* stream);

// Rates: FMAs in TFLOP/s (2 per FMA), memory in GB/s. `seconds` bounds the repeats; each sample is one launch.
PROBE_API int probe_fma_peak(int samples, int rounds, float* tflops, void* stream);
PROBE_API int probe_tensor_peak(int type, int samples, int rounds, float* tflops, void* stream);
PROBE_API int probe_warpgroup_peak(int samples, int rounds, float* tflops, void* stream);  // fp16, sm_90a only
PROBE_API int probe_memory_peak(int kind, int64_t bytes, int samples, float* gbps, void* stream);  // 0 read, 1 write, 2 copy
PROBE_API int probe_units(int* units, void* stream);  // distinct multiprocessors that ran a block

// A stream confined to at least `units` multiprocessors (green contexts); `got` says how many it has.
PROBE_API int probe_subset(int units, void** stream, int* got);
