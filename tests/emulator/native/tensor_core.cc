// ldmatrix, mma.sync.m16n8k8 and k16, and wgmma, by the fragment layouts of the PTX ISA. Products are summed in double and rounded once
// an instruction, so results differ from hardware by rounding only.
#include "machine.h"

namespace emu {
namespace {

float to_float(uint16_t bits, bool bf16) {
    if (bf16) {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        return value;
    }
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
}

// One element of a 128-byte-swizzled shared operand: start, leading and stride offsets in 16-byte units, layout in bits 62-63.
float operand(uint64_t descriptor, int index, int k, bool transposed, bool bf16) {
    const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4,
                   stride = (descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1) die("only the 128-byte swizzle of wgmma descriptors is emulated");
    const uint32_t address = transposed
                                 ? start + index / 64 * leading + k / 8 * stride + k % 8 * 128 + index % 64 * 2
                                 : start + index / 8 * stride + index % 8 * 128 + k * 2;
    uint16_t bits;
    std::memcpy(&bits, shared_pointer(swizzled(address, 3)), 2);
    return to_float(bits, bf16);
}

void perform(const WarpgroupMultiply& work) {
    const int id = current()->thread.id % 128, warp = id / 32, lane = id % 32;
    float a[2][16];
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k++)
            a[half][k] = operand(work.a, warp * 16 + half * 8 + lane / 4, k, work.a_transposed, work.bf16);
    for (int j = 0; j < work.n / 8; j++)
        for (int x = 0; x < 2; x++) {
            float b[16];
            for (int k = 0; k < 16; k++) b[k] = operand(work.b, j * 8 + lane % 4 * 2 + x, k, work.b_transposed, work.bf16);
            for (int half = 0; half < 2; half++) {
                float* d = work.d[j * 4 + half * 2 + x];
                double sum = work.add ? *d : 0.0;
                for (int k = 0; k < 16; k++) sum += static_cast<double>(a[half][k]) * b[k];
                *d = static_cast<float>(sum);
            }
        }
}

long g_bank_conflicts = 0;

// Eight 16-byte rows are read at once; two that start in the same group of four banks are a conflict.
void count_conflicts(int first_lane) {
    unsigned seen = 0;
    for (int row = 0; row < 8; row++) {
        const unsigned group = 1u << (fiber(first_lane + row)->exchange / 16 % 8);
        g_bank_conflicts += (seen & group) != 0;
        seen |= group;
    }
}

}  // namespace

uint16_t half_bits(float value) { return __half_raw(__float2half_rn(value)).x; }
uint16_t bf16_bits(float value) { return __nv_bfloat16_raw(__float2bfloat16_rn(value)).x; }
float half_value(uint16_t bits) { return to_float(bits, false); }

void load_matrices(int count, bool transposed, uint32_t** registers, uint32_t address) {
    if (address % 16) die("misaligned ldmatrix");
    current()->exchange = address;
    syncwarp();
    const int id = current()->thread.id, first = id / 32 * 32, lane = id % 32;
    for (int matrix = 0; matrix < count; matrix++) {
        uint16_t pair[2];
        for (int x = 0; x < 2; x++) {
            const int row = transposed ? lane % 4 * 2 + x : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + x;
            const auto at = static_cast<uint32_t>(fiber(first + matrix * 8 + row)->exchange) + column * 2;
            std::memcpy(&pair[x], shared_pointer(at), 2);
        }
        *registers[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
        if (lane == 0) count_conflicts(first + matrix * 8);
    }
    syncwarp();
}

void multiply_168(int depth, bool bf16, float** d, const uint32_t* a, const uint32_t* b, const float* c) {
    std::copy(a, a + depth / 4, current()->fragment);
    std::copy(b, b + depth / 8, current()->fragment + 4);
    syncwarp();
    const int id = current()->thread.id, first = id / 32 * 32, lane = id % 32;
    float result[4];
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        double sum = c[e];
        for (int k = 0; k < depth; k++) {
            const uint32_t a_pair = fiber(first + row % 8 * 4 + k % 8 / 2)->fragment[k / 8 * 2 + row / 8];
            const uint32_t b_pair = fiber(first + column * 4 + k % 8 / 2)->fragment[4 + k / 8];
            sum += static_cast<double>(to_float(a_pair >> k % 2 * 16, bf16)) * to_float(b_pair >> k % 2 * 16, bf16);
        }
        result[e] = static_cast<float>(sum);
    }
    syncwarp();
    for (int e = 0; e < 4; e++) *d[e] = result[e];
}

int dot_bytes(bool x_sign, bool w_sign, int x, int w, int sum) {
    for (int i = 0; i < 4; i++) {
        const int of_x = x_sign ? (int8_t)(x >> 8 * i) : (uint8_t)(x >> 8 * i);
        const int of_w = w_sign ? (int8_t)(w >> 8 * i) : (uint8_t)(w >> 8 * i);
        sum = static_cast<int>(static_cast<unsigned>(sum) + of_x * of_w);
    }
    return sum;
}

int nearest(float value) {
    if (std::isnan(value)) return 0;
    const double whole = std::nearbyint(static_cast<double>(value));
    return static_cast<int>(std::min(std::max(whole, -2147483648.0), 2147483647.0));
}

void multiply_bytes(bool x_sign, bool w_sign, int** d, const uint32_t* a, const uint32_t* b, const int* c) {
    std::copy(a, a + 4, current()->fragment);
    std::copy(b, b + 2, current()->fragment + 4);
    syncwarp();
    const int id = current()->thread.id, first = id / 32 * 32, lane = id % 32;
    int result[4];
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        result[e] = c[e];
        for (int word = 0; word < 8; word++)  // of four elements of k
            result[e] = dot_bytes(x_sign, w_sign, fiber(first + row % 8 * 4 + word % 4)->fragment[word / 4 * 2 + row / 8],
                                  fiber(first + column * 4 + word % 4)->fragment[4 + word / 4], result[e]);
    }
    syncwarp();
    for (int e = 0; e < 4; e++) *d[e] = result[e];
}

void warpgroup_multiply(bool bf16, int n, float** d, int values, uint64_t a, uint64_t b, bool add, bool a_transposed,
                        bool b_transposed) {
    if (values != n / 2) die("wgmma with another number of accumulators than its shape");
    WarpgroupMultiply work{bf16, add, a_transposed, b_transposed, n, a, b, std::vector<float*>(d, d + values)};
    if (late())
        current()->async.multiplies.push_back(std::move(work));
    else
        perform(work);
}

void warpgroup_commit() {
    Async& async = current()->async;
    async.multiply_commits++;
    async.multiply_groups.push_back(std::move(async.multiplies));
    async.multiplies.clear();
}

void warpgroup_wait(int pending) {
    // wgmma is collective: a group is complete only after all four warps of the warpgroup have issued it.
    const long needed = current()->async.multiply_commits - pending;
    const int first = current()->thread.id / 128 * 128, last = std::min(first + 128, threads());
    wait_until([=] {
        for (int i = first; i < last; i++)
            if (fiber(i)->async.multiply_commits < needed) return false;
        return true;
    });
    auto& groups = current()->async.multiply_groups;
    while (static_cast<int>(groups.size()) > pending) {
        for (const WarpgroupMultiply& work : groups.front()) perform(work);
        groups.pop_front();
    }
}

}  // namespace emu

extern "C" long emulator_bank_conflicts() { return emu::g_bank_conflicts; }
