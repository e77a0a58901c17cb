// What a launch takes on the virtual clock. Not a claim about hardware: an analytic surface that depends on the device's table,
// on the cubin's registers, shared memory and instructions, and on the problem, so that search and plans have something to find.
//
// A block costs the longer of its arithmetic and its loads, plus a fixed start; blocks run in rounds of what is resident on
// all units, and the last round is shorter where a unit holds fewer. All of it is at least the time of reading W and X once,
// three times faster where the L2 cache still holds them (what was used last, up to its size). A graph starts launches faster.
// The tile of a block is read off the kernel's name (_bm32_bn64), else guessed from its registers.
#include "standin.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <list>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

namespace standin {
namespace {

struct Tile {
    double m, n;
};
Tile tile_of(const Kernel& kernel, int threads) {
    static auto* known = new std::map<std::string, Tile>;
    auto found = known->find(kernel.name);
    if (found != known->end()) return found->second;
    Tile tile{};
    const size_t rows = kernel.name.find("_bm"), columns = kernel.name.find("_bn");
    if (rows != std::string::npos && columns != std::string::npos)
        tile = {std::atof(kernel.name.c_str() + rows + 3), std::atof(kernel.name.c_str() + columns + 3)};
    if (tile.m < 1 || tile.n < 1)  // accumulators are about half of the registers
        tile.m = tile.n = std::max(8.0, std::sqrt(threads * std::max(kernel.facts.registers, 16) * 0.5));
    return (*known)[kernel.name] = tile;
}

std::mt19937_64& noise() {
    static auto* made = new std::mt19937_64(0x9e3779b97f4a7c15ull ^ std::strtoull(setting("STANDIN_SEED", "0"), nullptr, 10));
    return *made;
}

}  // namespace

// STANDIN_NOISE (0.01): the relative spread; one launch in 200 takes half as long again.
double noisy(double us) {
    static const double spread = std::atof(setting("STANDIN_NOISE", "0.01"));
    if (spread <= 0) return us;
    std::uniform_real_distribution<double> uniform(-1, 1);
    const double factor = 1 + spread * (uniform(noise()) + uniform(noise()));
    return us * factor * (noise()() % 200 == 0 ? 1.5 : 1);
}

namespace {

double g_spent = 0;
bool g_replaying = false;

// What the L2 cache of each device holds, last used last: allocations' bytes by address. Sums of whole bytes are exact.
struct Cache {
    using Held = std::list<std::pair<uint64_t, double>>;
    Held held;
    std::unordered_map<uint64_t, std::vector<Held::iterator>> at;  // first used first
    double whole = 0;

    void drop(std::vector<Held::iterator>& same, size_t place) {
        const Held::iterator one = same[place];
        whole -= one->second;
        same.erase(same.begin() + static_cast<long>(place));
        if (same.empty()) at.erase(one->first);
        held.erase(one);
    }
};
std::vector<Cache>& caches() {
    static auto* made = new std::vector<Cache>(devices().size());
    return *made;
}
// Whether these bytes are in the cache, and from now on they are. A graph over cold weights asks for thousands in turn.
bool cached(int device, uint64_t address, double bytes) {
    Cache& cache = caches()[device];
    bool there = false;
    if (const auto found = cache.at.find(address); found != cache.at.end())
        for (size_t i = 0; i < found->second.size(); i++)
            if (found->second[i]->second >= bytes) {
                there = true;
                cache.drop(found->second, i);
                break;
            }
    cache.held.push_back({address, bytes});
    cache.at[address].push_back(std::prev(cache.held.end()));
    cache.whole += bytes;
    while (cache.whole > devices()[device].at(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)) cache.drop(cache.at[cache.held.front().first], 0);
    return there;
}

}  // namespace

void spend(double us) { g_spent += us; }
double spent() { return std::exchange(g_spent, 0.0); }
void set_replaying(bool is) { g_replaying = is; }

double launch_us(const Launch& launch) {
    const Device& device = device_of(launch.context);
    const Facts& facts = launch.kernel->facts;
    const int threads = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
    const double blocks = double(launch.grid[0]) * launch.grid[1] * launch.grid[2], units = std::max(device.units(), 1);
    const double held = std::max(resident_blocks(device, facts, threads, launch.shared), 1);
    const double mhz = std::max(device.at(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1e3, 100.0);
    // Bytes a microsecond of the memory, and of the L2 cache to one unit.
    const double bits = device.at(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    const double memory = std::max(2e-3 * device.at(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * bits / 8, 1e4), cache = 64 * mhz;
    const double start = g_replaying ? 1.2 : 2.5;  // a graph starts its launches faster than a stream
    const Arguments* arguments = arguments_of(launch);
    if (const Program* program = program_of(launch)) {  // elements pass through the memory, and through as many threads as there are
        double elements = 1;
        for (long long size : program->sizes) elements *= size ? double(size) : 1;
        const double there = std::min(blocks, held * units) * threads, bytes = 4 * elements * (program->last() + 1);
        return start + std::max(bytes / memory, 2e-3 * elements / there) + 0.2 * std::ceil(blocks / (held * units));
    }
    if (!arguments) return start + 0.5 * std::ceil(blocks / (held * units));
    const double m = arguments->m, n = arguments->n, k = arguments->k, splits = std::max(arguments->splits, 1);
    if (launch.kernel->name.rfind("haotuner_reduce", 0) == 0)
        return start + 0.5 + (splits * 4 + 4) * m * n / std::min(memory * 3, cache * units);
    const Tile tile = tile_of(*launch.kernel, threads);
    const double bytes = facts.matrix ? 2 : 4;
    // Multiply-adds a cycle of a unit: 128 scalar ones; tensor cores of 8.0 a thousand, of 9.0 with wgmma two.
    const double rate = !facts.matrix ? 128 : facts.warpgroup ? 2048 : 1024;
    const double share = std::ceil(k / splits);
    // With few warps a unit waits for its operands, with few bytes on their way for the cache: half of the rate at four
    // resident warps, half of the bandwidth at 16 KB of shared memory in use.
    const double warps = held * ((threads + 31) / 32), flight = std::max(held * launch.shared, 512 * warps);
    const double arithmetic = tile.m * tile.n * share / (rate * mhz * warps / (warps + 4));
    const double loads = (tile.m + tile.n) * share * bytes / (cache * flight / (flight + 16384));
    const double stores = tile.m * tile.n * (splits > 1 ? 4 : bytes) / cache;
    auto round = [&](double on_a_unit) { return 0.4 + on_a_unit * (std::max(arithmetic, loads) + stores) + share * 4e-4; };
    const double whole = std::floor(blocks / (held * units)), rest = blocks - whole * held * units;
    double us = whole * round(held);
    if (rest > 0) us += round(std::ceil(rest / units));
    const double of_w = n * k * bytes, of_x = m * k * bytes, of_y = m * n * bytes;
    const bool warm_w = cached(launch.context->device, arguments->w, of_w), warm_x = cached(launch.context->device, arguments->x, of_x);
    const double once = (of_w / (warm_w ? 3 : 1) + of_x / (warm_x ? 3 : 1) + of_y) / memory;
    return start + std::max(us, once);
}

}  // namespace standin
