// Bank conflicts of ordinary accesses to shared memory. A unit compiled with -fsanitize=thread calls these functions before
// every load and store; no sanitizer is linked. The nth time that the lanes of a warp come to one place of the code they are
// one instruction of the device, as long as lanes that skip it skip it for good.
#include "machine.h"

#include <map>
#include <set>

namespace emu {
void traced_copy_async(uint32_t to, const void* from, unsigned size, unsigned bytes);

namespace {

constexpr size_t kSharedBytes = 228 * 1024;
constexpr unsigned kBanks = 32, kWord = 4, kPhase = 128;  // what one pass over all banks brings

struct Place {
    const void* code;
    int warp, nth;
    bool operator<(const Place& other) const {
        return std::tie(code, warp, nth) < std::tie(other.code, other.warp, other.nth);
    }
};
struct Touch {
    int lane;
    uint32_t address;
};
struct Access {
    unsigned size;
    std::vector<Touch> touches;
};
bool g_on = false;
std::map<Place, Access> g_accesses;
std::map<std::pair<int, const void*>, int> g_times;

void touched(const void* code, uintptr_t at, unsigned size) {
    const auto first = reinterpret_cast<uintptr_t>(shared_memory());
    if (!g_on || at < first || at >= first + kSharedBytes) return;
    const int thread = current()->thread.id;
    auto& access = g_accesses[{code, thread / 32, g_times[{thread, code}]++}];
    access.size = size;
    access.touches.push_back({thread % 32, static_cast<uint32_t>(at - first)});
}

// Passes over the banks that one instruction of a warp takes, and the least that its lanes could take.
std::pair<long, long> passes(const Access& access) {
    const unsigned together = std::min(32u, kPhase / std::max(access.size, kWord));  // lanes of one pass
    std::map<int, std::map<unsigned, std::set<uint32_t>>> words;                     // by pass and bank
    for (const Touch& one : access.touches)
        for (uint32_t word = one.address / kWord; word <= (one.address + access.size - 1) / kWord; word++)
            words[one.lane / static_cast<int>(together)][word % kBanks].insert(word);
    long taken = 0;
    for (auto& [pass, banks] : words) {
        size_t deepest = 0;
        for (auto& [bank, distinct] : banks) deepest = std::max(deepest, distinct.size());
        taken += static_cast<long>(deepest);
    }
    return {taken, static_cast<long>(words.size())};
}

}  // namespace

void traced_copy_async(uint32_t to, const void* from, unsigned size, unsigned bytes) {
    touched(__builtin_return_address(0), reinterpret_cast<uintptr_t>(shared_pointer(to)), size);
    copy_async(to, from, size, bytes);
}

}  // namespace emu

extern "C" {
void emulator_trace(int on) {
    emu::g_on = on != 0;
    emu::g_accesses.clear();
    emu::g_times.clear();
}
// Passes that the accesses since emulator_trace(1) took, and the least.
void emulator_traced(long out[2]) {
    out[0] = out[1] = 0;
    for (auto& [place, access] : emu::g_accesses) {
        const auto [taken, least] = emu::passes(access);
        out[0] += taken, out[1] += least;
    }
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define TOUCH(name, size) \
    void __tsan_##name(void* at) { emu::touched(__builtin_return_address(0), reinterpret_cast<uintptr_t>(at), size); }
#define BOTH(bytes) \
    TOUCH(read##bytes, bytes) TOUCH(write##bytes, bytes) TOUCH(unaligned_read##bytes, bytes) TOUCH(unaligned_write##bytes, bytes)
BOTH(1) BOTH(2) BOTH(4) BOTH(8) BOTH(16)
void __tsan_read_range(void* at, size_t size) { emu::touched(__builtin_return_address(0), reinterpret_cast<uintptr_t>(at), size); }
void __tsan_write_range(void* at, size_t size) { emu::touched(__builtin_return_address(0), reinterpret_cast<uintptr_t>(at), size); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
