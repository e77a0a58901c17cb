// Green contexts: a part of a device's multiprocessors as a context of its own. One split at a time, as haotuner asks for it.
#include "standin.h"

#include <algorithm>

using namespace standin;

namespace {
struct Green {
    Context* context;
};
struct Plan {
    unsigned units;
};
std::set<Green*>& greens() {
    static auto* made = new std::set<Green*>;
    return *made;
}
std::set<Plan*>& plans() {
    static auto* made = new std::set<Plan*>;
    return *made;
}
// Least size and steps of a part: 8 and 8 from compute capability 9.0 on, 4 and 2 on 8.x, 2 and 2 before.
unsigned least(int capability) { return capability >= 90 ? 8 : capability >= 80 ? 4 : 2; }
unsigned step(int capability) { return capability >= 90 ? 8 : 2; }
bool too_old() { return driver_version() < 12040; }
}  // namespace

STANDIN_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
    ENTER("cuDeviceGetDevResource", driver);
    if (too_old()) return CUDA_ERROR_NOT_SUPPORTED;
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= static_cast<int>(devices().size())) return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    std::memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->_internal_padding[0] = static_cast<unsigned char>(device);
    resource->sm.smCount = devices()[device].units();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups, const CUdevResource* input,
                                                 CUdevResource* remaining, unsigned flags, unsigned count) {
    ENTER("cuDevSmResourceSplitByCount", driver);
    if (too_old()) return CUDA_ERROR_NOT_SUPPORTED;
    if (!groups || !input || flags) return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const int capability = devices()[input->_internal_padding[0]].capability();
    const unsigned steps = step(capability), all = input->sm.smCount;
    const unsigned size = (std::max(count, least(capability)) + steps - 1) / steps * steps;
    if (count > all || size > all) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    const unsigned most = all / size;
    if (!result) return *groups = most, CUDA_SUCCESS;
    *groups = std::min(*groups, most);
    for (unsigned i = 0; i < *groups; i++) {
        result[i] = *input;
        result[i].sm.smCount = size;
    }
    if (remaining) {
        *remaining = *input;
        remaining->sm.smCount = all - *groups * size;
    }
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
    ENTER("cuDevResourceGenerateDesc", driver);
    if (too_old()) return CUDA_ERROR_NOT_SUPPORTED;
    if (!description || !resources || count != 1 || resources->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_VALUE;
    auto* made = new Plan{resources->sm.smCount};
    plans().insert(made);
    *description = reinterpret_cast<CUdevResourceDesc>(made);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description, CUdevice device, unsigned flags) {
    ENTER("cuGreenCtxCreate", driver);
    if (too_old()) return CUDA_ERROR_NOT_SUPPORTED;
    auto* plan = reinterpret_cast<Plan*>(description);
    if (!green || !plans().count(plan) || !(flags & CU_GREEN_CTX_DEFAULT_STREAM)) return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= static_cast<int>(devices().size())) return CUDA_ERROR_INVALID_DEVICE;
    auto* part = new Device(devices()[device]);
    part->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = static_cast<int>(plan->units);
    auto* made = new Green{new_context(device)};
    made->context->part = part;
    greens().insert(made);
    *green = reinterpret_cast<CUgreenCtx>(made);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
    ENTER("cuCtxFromGreenCtx", driver);
    if (too_old()) return CUDA_ERROR_NOT_SUPPORTED;
    auto* green = reinterpret_cast<Green*>(handle);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!greens().count(green)) return CUDA_ERROR_INVALID_CONTEXT;
    *context = reinterpret_cast<CUcontext>(green->context);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx handle, unsigned flags, int) {
    ENTER("cuGreenCtxStreamCreate", driver);
    if (too_old()) return CUDA_ERROR_NOT_SUPPORTED;
    auto* green = reinterpret_cast<Green*>(handle);
    if (!greens().count(green)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;  // it wants that flag
    *stream = reinterpret_cast<CUstream>(new_stream(green->context, flags));
    return CUDA_SUCCESS;
}
