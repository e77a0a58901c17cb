// Threads are fibers; blocks run one after another. A fiber gives way only where it must wait; who runs next is drawn at
// random from a seed, and whole warps are held back for a while, so that a missing barrier shows up as a wrong result.
#include "machine.h"

#include <cstdio>
#include <map>
#include <random>

#undef threadIdx
#undef blockIdx

// Saves the callee-saved registers on the old stack and continues on the new one (System V x86-64 ABI).
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
)");
extern "C" void emu_switch(void** save_stack, void* next_stack);
extern "C" __attribute__((weak)) void emulator_died(const char* what);  // of the stand-in driver, which outlives a kernel

namespace emu {
namespace {

constexpr size_t kSharedBytes = 228 * 1024;  // an SM of sm_90, the largest
constexpr size_t kStackBytes = 128 * 1024;   // generated kernels keep a few KB of register arrays
constexpr int kMaxThreads = 1024;
constexpr unsigned kHoldOneIn = 4;  // one warp in four runs a round: a warp gets some dozens of steps ahead of another

alignas(1024) unsigned char g_shared[kSharedBytes];
std::vector<Fiber*> g_fibers;
Fiber* g_current = nullptr;
void* g_scheduler_stack = nullptr;
std::function<void()> g_body;
uint3 g_block;
dim3 g_block_extent, g_grid_extent;
int g_threads = 0;
unsigned g_multiprocessors = 1, g_block_number = 0;
std::mt19937 g_random(1);
std::map<int, Rendezvous> g_rendezvous;  // named barriers, and lanes of a mask
Rendezvous g_all_threads, g_warps[kMaxThreads / 32];
bool g_late = true;

void fiber_main() {
    g_body();
    g_current->done = true;
    emu_switch(&g_current->stack_pointer, g_scheduler_stack);
    die("a finished thread ran on");
}

void start(Fiber* fiber, int id) {
    fiber->thread.id = id;
    fiber->thread.index = {id % g_block_extent.x, id / g_block_extent.x % g_block_extent.y,
                           id / (g_block_extent.x * g_block_extent.y)};
    fiber->done = false;
    fiber->meeting = nullptr;
    fiber->ready = nullptr;
    Async& async = fiber->async;  // cleared, for new ones would ask for memory
    async.copies.clear();
    async.copy_groups.clear();
    async.multiplies.clear();
    async.multiply_groups.clear();
    async.multiply_commits = 0;
    async.held.clear();
    auto top = reinterpret_cast<uintptr_t>(fiber->stack + kStackBytes) & ~uintptr_t{15};
    auto* frame = reinterpret_cast<void**>(top) - 8;  // six registers, the entry, and one word that keeps the ABI's alignment
    std::memset(frame, 0, 8 * sizeof(void*));
    frame[6] = reinterpret_cast<void*>(&fiber_main);
    fiber->stack_pointer = frame;
}

void run_block() {
    std::memset(g_shared, 0xff, sizeof g_shared);  // NaN in every format: reading what nobody wrote shows
    g_rendezvous.clear();
    g_all_threads = {};
    for (Rendezvous& meeting : g_warps) meeting = {};
    async_reset();
    std::vector<int> order(g_threads);
    for (int i = 0; i < g_threads; i++) {
        start(g_fibers[i], i);
        order[i] = i;
    }
    std::vector<bool> held((g_threads + 31) / 32);
    bool hold = true;  // until a round without progress shows that the held warps are waited for
    for (int left = g_threads; left > 0;) {
        std::shuffle(order.begin(), order.end(), g_random);
        for (size_t warp = 0; warp < held.size(); warp++) held[warp] = hold && g_random() % kHoldOneIn != 0;
        bool progress = false;
        for (int i : order) {
            Fiber* fiber = g_fibers[i];
            if (held[i / 32] || fiber->done) continue;
            if (fiber->meeting) {
                if (fiber->meeting->generation == fiber->generation) continue;
                fiber->meeting = nullptr;
            } else if (fiber->ready) {
                if (!fiber->ready()) continue;
                fiber->ready = nullptr;
            }
            g_current = fiber;
            emu_switch(&g_scheduler_stack, fiber->stack_pointer);
            progress = true;
            left -= fiber->done;
        }
        if (!progress && !hold && !async_step()) {
            for (int i = 0; i < g_threads; i++)
                if (!g_fibers[i]->done) {
                    g_current = g_fibers[i];
                    break;
                }
            die("deadlock");
        }
        hold = progress;
    }
    g_current = nullptr;
}

}  // namespace

const Thread& thread() { return g_current->thread; }
const uint3& block() { return g_block; }
const dim3& block_extent() { return g_block_extent; }
const dim3& grid_extent() { return g_grid_extent; }
unsigned multiprocessor() { return g_block_number % g_multiprocessors; }
unsigned char* shared_memory() { return g_shared; }
Fiber* current() { return g_current; }
Fiber* fiber(int id) { return g_fibers[id]; }
int threads() { return g_threads; }
bool late() { return g_late; }

void wait_until(std::function<bool()> ready) {
    if (ready()) return;
    g_current->ready = std::move(ready);
    emu_switch(&g_current->stack_pointer, g_scheduler_stack);
}

// Most of what a fiber waits for: a number is looked at, no function called.
static void meet(Rendezvous& meeting, int members) {
    if (++meeting.arrived == members) {
        meeting.arrived = 0;
        meeting.generation++;
        return;
    }
    g_current->meeting = &meeting;
    g_current->generation = meeting.generation;
    emu_switch(&g_current->stack_pointer, g_scheduler_stack);
}

void syncthreads() { meet(g_all_threads, g_threads); }
// All lanes of the warp, or those of a mask: each mask that a kernel names is a meeting of its own.
void syncwarp(uint32_t mask) {
    const int warp = g_current->thread.id / 32, lanes = std::min(32, g_threads - warp * 32);
    if (lanes < 32) mask &= (1u << lanes) - 1;
    if (mask == (lanes < 32 ? (1u << lanes) - 1 : 0xffffffffu)) return meet(g_warps[warp], lanes);
    if (!(mask >> g_current->thread.id % 32 & 1)) die("a lane names a mask without itself");
    meet(g_rendezvous[warp * 32 + __builtin_ctz(mask)], __builtin_popcount(mask));
}

void sync_some(int barrier, int threads) {
    if (barrier < 1 || barrier > 15 || threads < 32 || threads % 32 || threads > g_threads) die("bar.sync out of range");
    meet(g_rendezvous[-barrier], threads);
}

uint64_t from_lane(uint64_t value, int lane, int width, uint32_t mask) {
    g_current->exchange = value;
    syncwarp(mask);
    const int id = g_current->thread.id, first = id / width * width;
    const uint64_t found = g_fibers[first + (lane & (width - 1))]->exchange;
    syncwarp(mask);
    return found;
}

void die(const char* what) {
    if (emulator_died) emulator_died(what);
    std::fprintf(stderr, "emulator: %s (block %u,%u, thread %d)\n", what, g_block.x, g_block.y,
                 g_current ? g_current->thread.id : -1);
    std::fflush(stderr);
    std::_Exit(70);
}

void execute(const dim3& grid, const dim3& extent, size_t dynamic_bytes, unsigned multiprocessors,
             const std::function<void()>& body) {
    g_threads = static_cast<int>(extent.x * extent.y * extent.z);
    if (dynamic_bytes > kSharedBytes) die("more dynamic shared memory than an SM has");
    if (g_threads > kMaxThreads || g_threads < 1) die("a block has 1 to 1024 threads");
    while (static_cast<int>(g_fibers.size()) < g_threads) {
        auto* fiber = new Fiber();
        fiber->stack = static_cast<unsigned char*>(std::malloc(kStackBytes));
        g_fibers.push_back(fiber);
    }
    g_body = body;
    g_block_extent = extent;
    g_grid_extent = grid;
    g_multiprocessors = multiprocessors;
    g_block_number = 0;
    for (g_block.z = 0; g_block.z < grid.z; g_block.z++)
        for (g_block.y = 0; g_block.y < grid.y; g_block.y++)
            for (g_block.x = 0; g_block.x < grid.x; g_block.x++, g_block_number++) run_block();
}

}  // namespace emu

// How asynchronous work behaves: late performs it at the last moment the ISA allows, early at the first.
extern "C" void emulator_set(int late, unsigned seed) {
    emu::g_late = late != 0;
    emu::g_random.seed(seed);
}
