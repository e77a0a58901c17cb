// Which launches are carried out (STANDIN_EXECUTE).
//   always  each
//   never   none: only their time passes
//   demand  one whose result somebody reads: a copy to the host, or a launch that is carried out. Launches wait in order; one
//           whose whole result the next one overwrites unread is dropped. What is read is what always would have given.
#include "standin.h"

#include <algorithm>
#include <cstring>

namespace standin {
namespace {

using LaunchPointer = std::shared_ptr<Launch>;
struct Waiting {
    LaunchPointer launch;
    std::set<CUdeviceptr> reads, writes;  // starts of allocations
    CUdeviceptr target = 0;               // the first byte written, and how many at most
    size_t bytes = 0;
};
std::vector<Waiting> g_waiting;
constexpr size_t kMost = 512;  // the oldest are carried out beyond

CUdeviceptr start_of(CUdeviceptr address) {
    CUdeviceptr start = 0;
    return address && allocation_at(address, &start) ? start : 0;
}

CUresult carry_out_all(const std::vector<bool>& marked) {
    std::vector<Waiting> now, later;
    for (size_t i = 0; i < g_waiting.size(); i++) (marked[i] ? now : later).push_back(std::move(g_waiting[i]));
    g_waiting = std::move(later);
    for (const Waiting& one : now) TRY(carry_out(*one.launch));
    return CUDA_SUCCESS;
}
bool meets(const std::set<CUdeviceptr>& some, const std::set<CUdeviceptr>& others) {
    return std::any_of(some.begin(), some.end(), [&](CUdeviceptr one) { return others.count(one); });
}
// Marked launches need what earlier ones wrote; and earlier ones that read or write what a marked one writes must go first.
CUresult carry_out_for(std::vector<bool> marked) {
    std::set<CUdeviceptr> needed, overwritten;
    for (size_t i = g_waiting.size(); i-- > 0;) {
        const Waiting& one = g_waiting[i];
        if (!marked[i] && !meets(one.writes, needed) && !meets(one.reads, overwritten) && !meets(one.writes, overwritten)) continue;
        marked[i] = true;
        needed.insert(one.reads.begin(), one.reads.end());
        overwritten.insert(one.writes.begin(), one.writes.end());
    }
    return carry_out_all(marked);
}
// Whether two launches that write at one place write the same elements.
bool alike(const Launch& one, const Launch& other) {
    const Program *program = program_of(one), *another = program_of(other);
    if (program || another)
        return program && another && !std::memcmp(program->sizes, another->sizes, sizeof program->sizes) &&
               !std::memcmp(program->strides, another->strides, sizeof program->strides);
    return arguments_of(one)->ldy == arguments_of(other)->ldy;
}
// Drops what is overwritten unread. Only launches of our own argument say what they write.
void drop_overwritten() {
    for (bool dropped = true; dropped;) {
        dropped = false;
        for (size_t i = 0; i < g_waiting.size() && !dropped; i++)
            for (size_t j = i + 1; j < g_waiting.size(); j++) {
                if (g_waiting[j].target == g_waiting[i].target && g_waiting[j].bytes == g_waiting[i].bytes &&
                    alike(*g_waiting[j].launch, *g_waiting[i].launch) && !meets(g_waiting[i].writes, g_waiting[j].reads)) {
                    g_waiting.erase(g_waiting.begin() + static_cast<long>(i));
                    dropped = true;
                    break;
                }
                if (meets(g_waiting[i].writes, g_waiting[j].reads)) break;  // others that write there, as the second of two regions, do not matter
            }
    }
}

// STANDIN_LIMIT: launches of more multiply-adds are not carried out in any mode; their results stay what they were.
bool too_large(const Arguments* arguments) {
    static const double limit = std::atof(setting("STANDIN_LIMIT", "1e18"));
    return arguments && double(arguments->m) * arguments->n * arguments->k > limit;
}

}  // namespace

void forget_waiting(const Context* context) {
    g_waiting.erase(std::remove_if(g_waiting.begin(), g_waiting.end(), [&](const Waiting& one) { return one.launch->context == context; }),
                    g_waiting.end());
}

CUresult defer(LaunchPointer launch) {
    if (launch->kernel->module->unloaded) {
        say("%s: its module was unloaded before it ran", launch->kernel->name.c_str());
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    const Arguments* arguments = arguments_of(*launch);
    const Program* program = program_of(*launch);
    if (execute_mode() == Execute::never || too_large(arguments)) return CUDA_SUCCESS;
    if (execute_mode() == Execute::always || (!arguments && !program)) {
        TRY(carry_out_for(std::vector<bool>(g_waiting.size(), true)));
        return carry_out(*launch);
    }
    Waiting one{launch, {}, {}, 0, 0};
    if (program) {
        for (int i = 0; i < program->last(); i++) one.reads.insert(start_of(program->data[i]));
        one.target = program->phase == 1 ? program->partial : program->data[program->last()];
        one.bytes = 1;
        if (program->phase == 2) one.reads = {start_of(program->partial)};
    } else {
        const bool partial = launch->kernel->name.rfind("haotuner_reduce", 0) != 0 && arguments->splits > 1;
        for (CUdeviceptr address : {arguments->x, arguments->w, arguments->bias, arguments->residual, arguments->scale, arguments->low,
                                     arguments->high, arguments->slope}) one.reads.insert(start_of(address));
        if (!partial && arguments->partial) one.reads.insert(start_of(arguments->partial));
        one.target = partial ? arguments->partial : arguments->y;
        one.bytes = partial ? 4ull * arguments->splits * arguments->m * arguments->n
                            : 4ull * ((arguments->m - 1ull) * arguments->ldy + arguments->n);  // at most: elements of four bytes
    }
    one.writes.insert(start_of(one.target));
    one.reads.erase(0);
    if (one.writes.count(0)) return carry_out(*launch);  // faults, as it would
    g_waiting.push_back(std::move(one));
    drop_overwritten();
    if (g_waiting.size() <= kMost) return CUDA_SUCCESS;
    std::vector<bool> oldest(g_waiting.size());
    oldest[0] = true;
    return carry_out_for(oldest);
}

CUresult before_read(CUdeviceptr address) {
    if (g_waiting.empty()) return CUDA_SUCCESS;
    std::vector<bool> marked(g_waiting.size());
    for (size_t i = 0; i < g_waiting.size(); i++) {  // a program may write beside its output, which its words do not tell from inputs
        const bool beside = program_of(*g_waiting[i].launch) && g_waiting[i].reads.count(start_of(address));
        marked[i] = beside || g_waiting[i].writes.count(start_of(address));
    }
    return carry_out_for(marked);
}

CUresult before_write(CUdeviceptr address, size_t bytes, bool freed) {
    if (g_waiting.empty()) return CUDA_SUCCESS;
    CUdeviceptr start = 0;
    const Allocation* block = allocation_at(address, &start);
    if (!block) return CUDA_SUCCESS;
    const bool whole = freed || (address == start && bytes >= block->bytes);
    if (whole)  // a result that nobody can read any more
        for (size_t i = g_waiting.size(); i-- > 0;) {
            if (!g_waiting[i].writes.count(start)) continue;
            const bool read = std::any_of(g_waiting.begin() + static_cast<long>(i) + 1, g_waiting.end(),
                                          [&](const Waiting& later) { return later.reads.count(start); });
            if (!read) g_waiting.erase(g_waiting.begin() + static_cast<long>(i));
        }
    std::vector<bool> marked(g_waiting.size());
    for (size_t i = 0; i < g_waiting.size(); i++)
        marked[i] = g_waiting[i].writes.count(start) || g_waiting[i].reads.count(start);
    return carry_out_for(marked);
}

}  // namespace standin
