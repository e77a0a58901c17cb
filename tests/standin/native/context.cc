// Contexts: a primary one a device, kept by count, and each thread's stack of current ones.
#include "standin.h"

namespace standin {
namespace {
thread_local std::vector<Context*> t_stack;

std::vector<Context*>& primaries() {
    static auto* made = [] {
        auto* all = new std::vector<Context*>;
        for (size_t i = 0; i < devices().size(); i++) {
            all->push_back(new Context);
            all->back()->device = static_cast<int>(i);
        }
        return all;
    }();
    return *made;
}
std::set<Context*>& known() {
    static auto* made = new std::set<Context*>(primaries().begin(), primaries().end());
    return *made;
}
void start(Context* context) {
    context->alive = true;
    if (context->legacy) return;
    context->legacy = new_stream(context, 0);
}
void end(Context* context) {
    wait_context(context);
    forget_captures(context);
    free_all(context);
    context->alive = false;
    context->retained = 0;
}
bool exists(CUdevice device) { return device >= 0 && device < static_cast<int>(devices().size()); }
}  // namespace

Context* current() { return t_stack.empty() ? nullptr : t_stack.back(); }
Context* primary(int device) { return primaries()[device]; }
const Device& device_of(const Context* context) { return context->part ? *context->part : devices()[context->device]; }
Context* new_context(int device) {
    auto* made = new Context;
    made->device = device;
    made->primary = false;
    known().insert(made);
    start(made);
    return made;
}

}  // namespace standin

using namespace standin;

STANDIN_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain", driver);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    start(primary(device));
    primary(device)->retained++;
    *context = reinterpret_cast<CUcontext>(primary(device));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER("cuDevicePrimaryCtxRelease", driver);
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (primary(device)->retained < 1) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary(device)->retained == 0) end(primary(device));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER("cuDevicePrimaryCtxReset", driver);
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (primary(device)->alive) end(primary(device));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    ENTER("cuDevicePrimaryCtxGetState", driver);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = primary(device)->flags;
    *active = primary(device)->alive;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    ENTER("cuDevicePrimaryCtxSetFlags", driver);
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    primary(device)->flags = flags;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    ENTER("cuCtxCreate", driver);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    auto* made = new_context(device);
    made->flags = flags;
    t_stack.push_back(made);
    *context = reinterpret_cast<CUcontext>(made);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}
STANDIN_API CUresult cuCtxDestroy_v2(CUcontext handle) {
    ENTER("cuCtxDestroy", driver);
    auto* context = reinterpret_cast<Context*>(handle);
    if (!known().count(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    end(context);
    if (current() == context) t_stack.pop_back();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER("cuCtxPushCurrent", driver);
    if (!known().count(reinterpret_cast<Context*>(context))) return CUDA_ERROR_INVALID_CONTEXT;
    t_stack.push_back(reinterpret_cast<Context*>(context));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    ENTER("cuCtxPopCurrent", driver);
    if (t_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = reinterpret_cast<CUcontext>(t_stack.back());
    t_stack.pop_back();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER("cuCtxSetCurrent", driver);
    if (context && !known().count(reinterpret_cast<Context*>(context))) return CUDA_ERROR_INVALID_CONTEXT;
    if (!t_stack.empty()) t_stack.pop_back();
    if (context) t_stack.push_back(reinterpret_cast<Context*>(context));
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetCurrent(CUcontext* context) {
    ENTER("cuCtxGetCurrent", driver);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = reinterpret_cast<CUcontext>(current());
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetDevice(CUdevice* device) {
    ENTER("cuCtxGetDevice", driver);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetFlags(unsigned* flags) {
    ENTER("cuCtxGetFlags", context);
    *flags = current()->flags;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
    ENTER("cuCtxGetApiVersion", driver);
    *version = 3020;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER("cuCtxGetStreamPriorityRange", context);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuCtxSynchronize() {
    ENTER("cuCtxSynchronize", context);
    TRY(refuse_wait(current()));
    return wait_context(current());
}
