// What the probe's files share, and one way to launch a kernel that nvcc and the emulator's g++ both take.
#pragma once
#include "probe.h"

cudaError_t probe_new_marks();  // the two events of probe_mark, made in the current context

template <class... Parameters, class... Arguments>
static cudaError_t probe_launch(void (*kernel)(Parameters...), int64_t blocks, int threads, void* stream,
                                Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks, 1, 1);
    config.blockDim = dim3((unsigned)threads, 1, 1);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, kernel, ((Parameters)arguments)...);
}
