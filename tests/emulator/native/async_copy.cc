// cp.async, mbarriers and TMA loads. In late mode a copy happens when somebody waits for it, a TMA load when no thread can go on.
#include "machine.h"

#include <map>

namespace emu {
namespace {

struct Barrier {
    int arrivals, pending;
    int64_t bytes;  // expected and not yet delivered
    int phase;
};

struct TensorMap {
    const unsigned char* base;
    uint64_t extent[5], pitch[4];
    uint32_t box[5];
    int rank, element, swizzle;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

std::map<uint32_t, Barrier> g_barriers;
std::deque<std::function<void()>> g_engine;

void perform(const Copy& copy) {
    std::memset(copy.to, 0, copy.size);
    std::memcpy(copy.to, copy.from, copy.bytes);
}

Barrier& barrier_at(uint32_t address) {
    auto found = g_barriers.find(address);
    if (found == g_barriers.end()) die("mbarrier used before its init");
    return found->second;
}

void complete(Barrier& barrier) {
    if (barrier.pending < 0) die("more arrivals at an mbarrier than it expects");
    if (barrier.pending == 0 && barrier.bytes == 0) {
        barrier.phase ^= 1;
        barrier.pending = barrier.arrivals;
    }
}

}  // namespace

void async_reset() {
    g_barriers.clear();
    g_engine.clear();
}

bool async_step() {
    if (g_engine.empty()) return false;
    auto work = std::move(g_engine.front());
    g_engine.pop_front();
    work();
    return true;
}

void copy_async(uint32_t to, const void* from, unsigned size, unsigned bytes) {
    if (bytes > size) die("cp.async reads more than it writes");
    if (to % size || (bytes && reinterpret_cast<uintptr_t>(from) % size)) die("misaligned cp.async");
    const Copy copy{shared_pointer(to), from, size, bytes};
    if (late())
        current()->async.copies.push_back(copy);
    else
        perform(copy);
}

void copy_commit() {
    Async& async = current()->async;
    async.copy_groups.push_back(std::move(async.copies));
    async.copies.clear();
}

void copy_wait(int pending) {
    auto& groups = current()->async.copy_groups;
    while (static_cast<int>(groups.size()) > pending) {
        for (const Copy& copy : groups.front()) perform(copy);
        groups.pop_front();
    }
}

void copy_arrive(uint32_t address) {
    Fiber* const asked = current();
    auto work = [=] {
        Async& async = asked->async;
        for (const auto& group : async.copy_groups)
            for (const Copy& copy : group) perform(copy);
        for (const Copy& copy : async.copies) perform(copy);
        async.copy_groups.clear(), async.copies.clear();
        barrier_arrive(address, 1);
    };
    if (late())
        g_engine.push_back(work);
    else
        work();
}

void barrier_init(uint32_t address, int arrivals) {
    if (address % 8) die("misaligned mbarrier");
    g_barriers[address] = {arrivals, arrivals, 0, 0};
}

void barrier_arrive(uint32_t address, int arrivals) {
    Barrier& barrier = barrier_at(address);
    barrier.pending -= arrivals;
    complete(barrier);
}

void barrier_expect(uint32_t address, int64_t bytes) {
    Barrier& barrier = barrier_at(address);
    barrier.bytes += bytes;
    barrier.pending--;
    complete(barrier);
}

void barrier_wait(uint32_t address, int parity) {
    wait_until([=] { return barrier_at(address).phase != parity; });
}

void tensor_load(uint32_t to, const void* map, const int* corner, uint32_t barrier) {
    TensorMap tensor;
    std::memcpy(&tensor, map, sizeof tensor);
    if (to % (tensor.swizzle == 3 ? 1024 : 128)) die("TMA destination off its swizzle pattern");
    int at[5] = {};
    std::copy(corner, corner + tensor.rank, at);
    auto work = [=] {
        int64_t count = 1;
        for (int i = 0; i < tensor.rank; i++) count *= tensor.box[i];
        for (int64_t e = 0; e < count; e++) {
            int64_t rest = e, offset = 0;
            bool inside = true;
            for (int i = 0; i < tensor.rank; i++) {
                const int64_t x = rest % tensor.box[i] + at[i];
                rest /= tensor.box[i];
                inside &= x >= 0 && static_cast<uint64_t>(x) < tensor.extent[i];
                offset += x * static_cast<int64_t>(i ? tensor.pitch[i - 1] : tensor.element);
            }
            void* target = shared_pointer(swizzled(to + static_cast<uint32_t>(e * tensor.element), tensor.swizzle));
            if (inside)
                std::memcpy(target, tensor.base + offset, tensor.element);
            else
                std::memset(target, 0, tensor.element);
        }
        Barrier& delivered = barrier_at(barrier);
        delivered.bytes -= count * tensor.element;
        complete(delivered);
    };
    if (late())
        g_engine.push_back(work);
    else
        work();
}

}  // namespace emu

// Refuses what the driver refuses: pitches and bases off 16 bytes, boxes over 256, a swizzled row over 128 bytes.
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                                           const cuuint64_t* extent, const cuuint64_t* pitch, const cuuint32_t* box,
                                           const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    emu::TensorMap tensor{};
    tensor.base = static_cast<const unsigned char*>(base);
    tensor.rank = static_cast<int>(rank);
    tensor.element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
    tensor.swizzle = swizzle;
    if (reinterpret_cast<uintptr_t>(base) % 16) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++) {
        tensor.extent[i] = extent[i];
        tensor.box[i] = box[i];
        if (!extent[i] || !box[i] || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
        if (i + 1 < rank) {
            tensor.pitch[i] = pitch[i];
            if (pitch[i] % 16) return CUDA_ERROR_INVALID_VALUE;
        }
    }
    const uint32_t row = box[0] * static_cast<uint32_t>(tensor.element);
    if (row % 16 || (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && row > 128)) return CUDA_ERROR_INVALID_VALUE;
    std::memset(map, 0, sizeof *map);
    std::memcpy(map, &tensor, sizeof tensor);
    return CUDA_SUCCESS;
}
