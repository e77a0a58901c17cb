// cuTensorMapEncodeTiled: what the manual asks of its arguments, then the emulator's own encoding, signed at its end.
#include "standin.h"

extern "C" CUresult emulated_cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

STANDIN_API CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                                            const cuuint64_t* extent, const cuuint64_t* pitch, const cuuint32_t* box,
                                            const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    ENTER("cuTensorMapEncodeTiled", context);
    if (!map || !base || !extent || !box || !steps || rank < 1 || rank > 5 || (rank > 1 && !pitch)) return CUDA_ERROR_INVALID_VALUE;
    if (reinterpret_cast<uintptr_t>(map) % 64) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (extent[i] > (cuuint64_t(1) << 32) || steps[i] < 1 || steps[i] > 8) return CUDA_ERROR_INVALID_VALUE;
        if (i + 1 < rank && pitch[i] >= (cuuint64_t(1) << 40)) return CUDA_ERROR_INVALID_VALUE;
    }
    TRY(emulated_cuTensorMapEncodeTiled(map, type, rank, base, extent, pitch, box, steps, interleave, swizzle, promotion, fill));
    const uint64_t check = reinterpret_cast<uint64_t>(base) ^ 0x68616f74756e6572ull;
    std::memcpy(reinterpret_cast<unsigned char*>(map) + sizeof *map - 8, &check, 8);
    return CUDA_SUCCESS;
}
