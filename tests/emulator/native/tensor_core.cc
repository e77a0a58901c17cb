// ldmatrix, mma.sync.m16n8k8 and k16, and wgmma, by the fragment layouts of the PTX ISA. Products are summed in double and rounded once
// an instruction, so results differ from hardware by rounding only.
#include "machine.h"

namespace emu {
namespace {

float to_float(uint16_t bits, bool bf16) {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    if (!bf16) {  // the digits in place, the exponent by a product: exact for subnormal halves, too
        wide = static_cast<uint32_t>(bits & 0x7fff) << 13;
        std::memcpy(&value, &wide, 4);
        value *= 0x1p112f;
        std::memcpy(&wide, &value, 4);
        if ((bits & 0x7c00) == 0x7c00) wide |= 0x7f800000;  // infinite, or no number
        wide |= static_cast<uint32_t>(bits & 0x8000) << 16;
    }
    std::memcpy(&value, &wide, 4);
    return value;
}

// A 128-byte-swizzled shared operand: start, leading and stride offsets in 16-byte units, layout in bits 62-63.
struct Operand {
    Operand(uint64_t descriptor, bool transposed, bool bf16)
        : start((descriptor & 0x3fff) << 4), leading((descriptor >> 16 & 0x3fff) << 4), stride((descriptor >> 32 & 0x3fff) << 4),
          transposed(transposed), bf16(bf16), shared(shared_memory()) {
        if (descriptor >> 62 != 1) die("only the 128-byte swizzle of wgmma descriptors is emulated");
    }
    float at(int index, int k) const {
        const uint32_t address = transposed
                                     ? start + index / 64 * leading + k / 8 * stride + k % 8 * 128 + index % 64 * 2
                                     : start + index / 8 * stride + index % 8 * 128 + k * 2;
        uint16_t bits;
        std::memcpy(&bits, shared + swizzled(address, 3), 2);
        return to_float(bits, bf16);
    }
    const uint32_t start, leading, stride;
    const bool transposed, bf16;
    const unsigned char* const shared;
};

void perform(const WarpgroupMultiply& work) {
    const int id = current()->thread.id % 128, warp = id / 32, lane = id % 32;
    const Operand of_b(work.b, work.b_transposed, work.bf16);
    float a[2][16];
    if (work.held.empty()) {
        const Operand of_a(work.a, work.a_transposed, work.bf16);
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < 16; k++) a[half][k] = of_a.at(warp * 16 + half * 8 + lane / 4, k);
    } else {
        for (int e = 0; e < 4; e++)
            if (*work.held[e] != current()->async.held[work.a][e]) die("wgmma with registers that changed under way");
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < 16; k++) {  // as of mma.sync: four lanes have a row, each two neighbours of it
                const Fiber* const owner = fiber(current()->thread.id / 4 * 4 + k % 8 / 2);
                a[half][k] = to_float(owner->async.held[work.a][k / 8 * 2 + half] >> k % 2 * 16, work.bf16);
            }
    }
    for (int j = 0; j < work.n / 8; j++)
        for (int x = 0; x < 2; x++) {
            float b[16];
            for (int k = 0; k < 16; k++) b[k] = of_b.at(j * 8 + lane % 4 * 2 + x, k);
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
    float* mine = current()->values;  // each half is converted once, by its own lane
    for (int x = 0; x < depth / 2; x++) mine[x] = to_float(a[x / 2] >> x % 2 * 16, bf16);
    for (int x = 0; x < depth / 4; x++) mine[16 + x] = to_float(b[x / 2] >> x % 2 * 16, bf16);
    syncwarp();
    const int id = current()->thread.id, first = id / 32 * 32, lane = id % 32;
    float result[4];
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        double sum = c[e];
        for (int k = 0; k < depth; k++) {
            const float of_a = fiber(first + row % 8 * 4 + k % 8 / 2)->values[(k / 8 * 2 + row / 8) * 2 + k % 2];
            const float of_b = fiber(first + column * 4 + k % 8 / 2)->values[16 + k / 8 * 2 + k % 2];
            sum += static_cast<double>(of_a) * of_b;
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
    WarpgroupMultiply work{bf16, add, a_transposed, b_transposed, n, a, b, std::vector<float*>(d, d + values), {}};
    if (late())
        current()->async.multiplies.push_back(std::move(work));
    else
        perform(work);
}

void warpgroup_multiply_held(bool bf16, int n, float** d, int values, const uint32_t** a, uint64_t b, bool b_transposed) {
    if (values != n / 2) die("wgmma with another number of accumulators than its shape");
    Async& async = current()->async;
    const size_t place = async.held.size();
    async.held.push_back({*a[0], *a[1], *a[2], *a[3]});
    WarpgroupMultiply work{bf16, true, false, b_transposed, n, place, b, std::vector<float*>(d, d + values), {a, a + 4}};
    if (late()) {
        async.multiplies.push_back(std::move(work));
        return;
    }
    const int first = current()->thread.id / 4 * 4;  // lanes that have a row together
    wait_until([=] {
        for (int i = first; i < first + 4; i++)
            if (fiber(i)->async.held.size() <= place) return false;
        return true;
    });
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
    syncwarp();  // no lane goes on before the warp's products are done
}

}  // namespace emu

extern "C" long emulator_bank_conflicts() { return emu::g_bank_conflicts; }
