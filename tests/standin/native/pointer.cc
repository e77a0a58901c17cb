// cuPointerGetAttribute and its plural: what the driver knows of an address.
#include "standin.h"

using namespace standin;

namespace {
CUresult attribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
    CUdeviceptr start = 0;
    const Allocation* block = allocation_at(address, &start);
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(value) = reinterpret_cast<CUcontext>(block->context); break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = address; break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(value) = block->id; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(value) = 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = block->context->device; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = start; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(value) = block->bytes; break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *static_cast<bool*>(value) = true; break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
}  // namespace

STANDIN_API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
    ENTER("cuPointerGetAttribute", context);
    return value ? attribute(value, which, address) : CUDA_ERROR_INVALID_VALUE;
}
// An address that the driver does not know is no error here: its answers are zero.
STANDIN_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** values, CUdeviceptr address) {
    ENTER("cuPointerGetAttributes", context);
    if (!which || !values) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (allocation_at(address)) {
            TRY(attribute(values[i], which[i], address));
            continue;
        }
        const bool wide = which[i] == CU_POINTER_ATTRIBUTE_CONTEXT || which[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
        std::memset(values[i], 0, wide ? 8 : 4);
        if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(values[i]) = -2;  // CU_DEVICE_INVALID
    }
    return CUDA_SUCCESS;
}
