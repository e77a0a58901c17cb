// What the emulator's parts share: a fiber is one CUDA thread with its pending asynchronous work.
#pragma once
#include "emulator.h"

#include <array>
#include <deque>
#include <vector>

namespace emu {

struct Copy {
    void* to;
    const void* from;
    unsigned size, bytes;
};

struct WarpgroupMultiply {
    bool bf16, add, a_transposed, b_transposed;
    int n;
    uint64_t a, b;
    std::vector<float*> d;
    std::vector<const uint32_t*> held;  // the rows' operand where it is in registers; `a`: which of the thread's it is
};

struct Async {
    std::vector<Copy> copies;  // issued since the last commit
    std::deque<std::vector<Copy>> copy_groups;
    std::vector<WarpgroupMultiply> multiplies;
    std::deque<std::vector<WarpgroupMultiply>> multiply_groups;
    long multiply_commits = 0;
    std::vector<std::array<uint32_t, 4>> held;  // registers as they were when a product was asked for, in order
};

struct Rendezvous {
    int arrived = 0;
    long generation = 0;
};

struct Fiber {
    Thread thread;
    bool done;
    const Rendezvous* meeting;    // may run once its generation is another; null: nobody is waited for
    long generation;
    std::function<bool()> ready;  // of other waits; empty: may run
    void* stack_pointer;
    unsigned char* stack;
    uint64_t exchange;
    uint32_t fragment[8];
    float values[24];  // of a fragment of halves
    Async async;
};

Fiber* current();
Fiber* fiber(int id);
int threads();
bool late();
void wait_until(std::function<bool()> ready);
void execute(const dim3& grid, const dim3& extent, size_t dynamic_bytes, unsigned multiprocessors,
             const std::function<void()>& body);
void async_reset();
bool async_step();  // performs one pending TMA request; false when there is none

// The XOR of the TMA swizzle modes (CUDA driver API, CUtensorMapSwizzle): 16-byte chunks by the 128-byte row.
inline uint32_t swizzled(uint32_t address, int mode) {
    const uint32_t rows[] = {0, 1, 3, 7};
    return address ^ ((address >> 7 & rows[mode]) << 4);
}

}  // namespace emu

extern "C" void emulator_set(int late, unsigned seed);  // how asynchronous work behaves, and which thread runs next
