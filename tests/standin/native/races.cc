// Whether accesses are ordered, not whether they happened to be: each piece of work knows what comes before it (its stream's
// order, events, the legacy stream, what the host waited for). Two that touch the same bytes, one writing, with no order between
// them are a race, under any seed. STANDIN_RACES: "error" makes it a sticky 719, "say" tells of it, "off" does not look.
// Known: copies, memsets, and launches of ht_cuda_args (rows of Y as one range). A graph counts as one piece of work.
#include "standin.h"

#include <algorithm>

namespace standin {
namespace {

struct Access {
    CUdeviceptr from, to;
    bool write;
    unsigned long long stream, tick;
};
std::map<CUdeviceptr, std::vector<Access>> g_accesses;  // by allocation
Clock g_host;
const Stream* g_stream = nullptr;
const Work* g_work = nullptr;
long g_races = 0;
constexpr long kSaid = 10;
constexpr size_t kKept = 128;  // of one allocation, since its context was last waited for

bool before(const Access& access, const Clock& clock) {
    auto found = clock.find(access.stream);
    return found != clock.end() && access.tick <= found->second;
}
const std::string& reaction() {
    static auto* word = new std::string(setting("STANDIN_RACES", "say"));
    return *word;
}

}  // namespace

void join(Clock& clock, const Clock& other) {
    for (auto& [stream, tick] : other) {
        auto& own = clock[stream];
        own = std::max(own, tick);
    }
}
void begin_work(const Stream* stream, const Work* work) { g_stream = stream, g_work = work; }
void end_work() { g_work = nullptr; }
void host_knows(const Clock& clock) { join(g_host, clock); }
const Clock& host_clock() { return g_host; }
void all_is_done() {
    g_accesses.clear();
    g_host.clear();
}
void forget_accesses(CUdeviceptr start) { g_accesses.erase(start); }

CUresult touch(CUdeviceptr address, size_t bytes, bool write) {
    CUdeviceptr start = 0;
    if (!g_work || !bytes || reaction() == "off" || !allocation_at(address, &start)) return CUDA_SUCCESS;
    auto& accesses = g_accesses[start];
    const Access now{address, address + bytes, write, g_stream->number, g_work->clock.at(g_stream->number)};
    for (const Access& one : accesses) {
        if (one.to <= now.from || now.to <= one.from || !(one.write || write) || before(one, g_work->clock)) continue;
        if (++g_races <= kSaid)
            say("race: stream %llu %s bytes %#llx to %#llx that stream %llu %s, and nothing orders them", now.stream, write ? "writes" : "reads",
                std::max(now.from, one.from), std::min(now.to, one.to), one.stream, one.write ? "writes" : "reads");
        if (reaction() == "error") return CUDA_ERROR_LAUNCH_FAILED;
    }
    // One entry for what this stream did before with the same bytes: its order covers the older ones.
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(), [&](const Access& one) {
        return one.stream == now.stream && one.from == now.from && one.to == now.to && one.write == now.write;
    }), accesses.end());
    if (accesses.size() >= kKept) accesses.erase(accesses.begin());
    accesses.push_back(now);
    return CUDA_SUCCESS;
}

}  // namespace standin

STANDIN_API long standin_races() { return standin::g_races; }
