// Attention by wgmma (sm_90a; Shah et al. 2024, FlashAttention-3): as attention.cuh, but that a group of four warps has 64 rows and
// multiplies them at once. Rows, keys and values lie in panels of 64 columns in the 128-byte swizzle; the products of the rows with
// the next tile of keys and those with the values of this one are under way while exponentials are computed.
// Two forms: a block of one group that copies for itself, several on a multiprocessor; and two or three groups that go on each by
// itself as soon as its operands have come, and four warps more that bring them.
HT_DEVICE void ht_products_ready() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HT_DEVICE void ht_products_begun() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING, int COUNT>
HT_DEVICE void ht_products_done(float* sums) {  // all groups but the last PENDING; `sums` are read behind it, not before
    static_assert(PENDING == 0 || PENDING == 1, "two groups are under way");
    if constexpr (PENDING == 0) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if constexpr (PENDING == 1) asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
HT_DEVICE void ht_written_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// As ht_bring, into panels of ROWS rows and 64 columns, each 16 bytes where the swizzle has them.
template <int ROWS, int COLUMNS, int THREADS, class T>
HT_DEVICE void ht_bring_swizzled(T* to, const ht_rows<const T>& from, int first) {
    constexpr int CHUNKS = (COLUMNS + 15) / 16 * 2, MANY = THREADS / CHUNKS, STEP = MANY < 8 ? MANY : MANY / 8 * 8;
    static_assert(STEP > 0, "a block has a thread for every 8 columns");
    const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, column = chunk * 8;
    const int there = (column < COLUMNS ? from.count - first : 0) - own;
    if (STEP * CHUNKS != THREADS && own >= STEP) return;
    const T* source = from.at + (first + own) * from.stride + column;
    T* const place = to + (chunk / 8 * ROWS + own) * 64;
    if (from.whole) {
        const uint32_t address = (uint32_t)__cvta_generic_to_shared(place);
#pragma unroll
        for (int row = 0; row < ROWS; row += STEP, source += STEP * from.stride) {
            if (ROWS % STEP != 0 && own >= ROWS - row) break;
            ht_bring_piece(address + row * 128 + (chunk % 8 ^ (own + row) % 8) * 16, source, row < there);
        }
        return;
    }
#pragma unroll 1
    for (int row = 0; row < ROWS && own < ROWS - row; row += STEP, source += STEP * from.stride) {
        T* const at = place + row * 64 + (chunk % 8 ^ (own + row) % 8) * 8;
#pragma unroll
        for (int e = 0; e < 8; e++) at[e].bits = row < there ? source[e].bits : 0;
    }
}

// The operands of the second product, as they lie in the registers of what the first one left.
template <int KEYS, class T>
HT_DEVICE void ht_packed(uint32_t* power, const float (*x)[4], T) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) power[i] = ht_pair(T(), x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// Where a block's rows and its ring of tiles lie, and what a group of four warps does with them.
template <int GROUPS, int KEYS, int STAGES, int DEPTH, int COLUMNS, class T>
struct ht_panels {
    static constexpr int STEPS = (DEPTH + 15) / 16, PANELS = (STEPS + 3) / 4, V_PANELS = (COLUMNS + 63) / 64, ROWS = GROUPS * 64;
    static constexpr int KEY_TILE = KEYS * PANELS * 64, VALUE_TILE = KEYS * V_PANELS * 64;
    static constexpr int PANEL = 64 * 2 / 16;  // a row of a panel, in units of 16 bytes
    T *rows, *keys, *values;
    HT_DEVICE ht_panels() {
        extern __shared__ __align__(1024) uchar ht_attention_wide[];  // the swizzle's pattern repeats every 1024 bytes
        rows = (T*)ht_attention_wide;
        keys = rows + ROWS * (PANELS > V_PANELS ? PANELS : V_PANELS) * 64;
        values = keys + STAGES * KEY_TILE;
    }
};

// A group's tile of 64 rows, the warp's 16 of them from `own` on: what its threads hold.
template <int KEYS, int COLUMNS, class T, class Panels>
struct ht_group {
    float x[KEYS / 8][4], sums[COLUMNS / 8][4], most[2], total[2], before[2], scale;
    uint32_t power[KEYS / 4], at_rows, at_keys, at_values;
    int own, end_row, end_key, plain, limit[2];

    template <class Seen>
    HT_DEVICE ht_group(const Panels& at, int warp, int base, int end_row, int end_key, float factor, Seen seen)
        : own(base + warp * 16), end_row(end_row), end_key(end_key) {
        const int row = own + threadIdx.x % 32 / 4;
        plain = seen(min(own, end_row)) / KEYS;
        limit[0] = seen(min(row, end_row)), limit[1] = seen(min(row + 8, end_row));
        scale = factor * 1.4426950408889634f;
        at_rows = ht_descriptor_low(at.rows + warp / 4 * (64 * 64), 1), at_keys = ht_descriptor_low(at.keys, 1);
        at_values = ht_descriptor_low(at.values, KEYS * at.PANEL);
        most[0] = most[1] = __uint_as_float(0xff800000u), total[0] = total[1] = 0.0f;
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) sums[j / 4][j % 4] = 0.0f;
    }
    HT_DEVICE void multiply_keys(int slot) {
#pragma unroll
        for (int kk = 0; kk < Panels::STEPS; kk++)
            ht_warpgroup<KEYS, T>::scores(
                x[0], ht_descriptor(at_rows + (kk / 4 * (Panels::ROWS * Panels::PANEL) + kk % 4 * 2), 64),
                ht_descriptor(at_keys + slot * (Panels::KEY_TILE / 8) + (kk / 4 * (KEYS * Panels::PANEL) + kk % 4 * 2), 64), kk > 0);
        ht_products_begun();
    }
    HT_DEVICE void multiply_values(int slot) {
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++)
            ht_warpgroup<COLUMNS, T>::sums(
                sums[0], power + kk * 4,
                ht_descriptor(at_values + slot * (Panels::VALUE_TILE / 8) + kk * (16 * Panels::PANEL), 64));
        ht_products_begun();
    }
    template <class Score>
    HT_DEVICE void powers(int tile, Score score) {
        ht_scores<KEYS>(x, limit, own, tile * KEYS, tile >= plain, score, end_row, end_key);
        ht_powers<KEYS, 2>(x, most, total, before, scale);
    }
    HT_DEVICE void values_done() {
        // Never so. A branch that all exponentials come before keeps the wait behind them: ptxas moves it up to the last branch.
        if (ht_uniform(total[0] + total[1] < 0.0f)) __syncwarp();
        ht_products_done<0, COLUMNS / 2>(sums[0]);
    }
    HT_DEVICE void rescaled() {
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) sums[j / 4][j % 4] *= before[j / 2 % 2];
        ht_packed<KEYS>(power, x, T());
    }
    HT_DEVICE void added_up() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        }
    }
    // Through the warp's own rows of shared memory, so that neighbours in memory are written at once.
    HT_DEVICE void write(const Panels& at, int warp, const ht_rows<T>& out) {
        const int lane = threadIdx.x % 32;
        const auto placed = [&](int row, int column) {
            return at.rows + column / 64 * (Panels::ROWS * 64) + (warp * 16 + row) * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8;
        };
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float share = 1.0f / (end_key < 0 ? 1.0f : total[r]);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
                *(uint32_t*)placed(r * 8 + lane / 4, j * 8 + lane % 4 * 2) =
                    ht_pair(T(), sums[j][2 * r] * share, sums[j][2 * r + 1] * share);
        }
        __syncwarp();
        for (int i = lane; i < 16 * (COLUMNS / 8); i += 32) {
            const int row = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
            if (own + row > end_row) break;
            const T* const from = placed(row, column);
            T* const to = out.at + (own + row) * out.stride + column;
            if (out.whole) *(uint4*)to = *(const uint4*)from;
            else
#pragma unroll
                for (int e = 0; e < 8; e++) to[e].bits = from[e].bits;
        }
    }
};

// As ht_attend, by a block of one group. The ring has STAGES tiles of keys and as many of values; a tile of keys is asked for one step
// before its values, since it is read one step before.
template <int KEYS, int STAGES, int DEPTH, int COLUMNS, class T, class Score, class Seen>
HT_DEVICE void ht_attend_wide(const ht_rows<const T>& q, const ht_rows<const T>& k, const ht_rows<const T>& v, const ht_rows<T>& out,
                              int base, float factor, Score score, Seen seen) {
    constexpr int THREADS = 128;
    using Panels = ht_panels<1, KEYS, STAGES, DEPTH, COLUMNS, T>;
    const Panels at;
    const int warp = ht_warp(), end = (seen(min(base + 63, q.count - 1)) + KEYS - 1) / KEYS;
    const auto bring_keys = [&](int slot, int tile) {
        if (tile < end) ht_bring_swizzled<KEYS, DEPTH, THREADS>(at.keys + slot * Panels::KEY_TILE, k, tile * KEYS);
    };
    const auto bring_values = [&](int slot, int tile) {
        if (tile < end) ht_bring_swizzled<KEYS, COLUMNS, THREADS>(at.values + slot * Panels::VALUE_TILE, v, tile * KEYS);
    };
    ht_bring_swizzled<64, DEPTH, THREADS>(at.rows, q, base);
    bring_keys(0, 0);
    ht_copies_begun();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        bring_values(s, s);
        bring_keys(s + 1, s + 1);
        ht_copies_begun();
    }
    ht_group<KEYS, COLUMNS, T, Panels> group(at, warp, base, q.count - 1, k.count - 1, factor, seen);
    if (end > 0) {
        ht_copies_done<STAGES - 1>();
        ht_written_for_products();
        __syncthreads();
        ht_products_ready();
        group.multiply_keys(0);
        ht_products_done<0, KEYS / 2>(group.x[0]);
        group.powers(0, score);
        ht_packed<KEYS>(group.power, group.x, T());
    }
    int slot = 0;
    for (int tile = 0; tile < end - 1; tile++) {
        ht_copies_done<STAGES - 2>();
        ht_written_for_products();
        __syncthreads();
        const int next = slot == STAGES - 1 ? 0 : slot + 1, freed = slot == 0 ? STAGES - 1 : slot - 1;
        ht_products_ready();
        group.multiply_keys(next);
        group.multiply_values(slot);
        bring_values(freed, tile + STAGES - 1);
        bring_keys(slot, tile + STAGES);
        ht_copies_begun();
        ht_products_done<1, KEYS / 2>(group.x[0]);
        group.powers(tile + 1, score);
        group.values_done();
        group.rescaled();
        slot = next;
    }
    ht_copies_done<0>();
    ht_written_for_products();
    __syncthreads();
    if (end > 0) {
        ht_products_ready();
        group.multiply_values(slot);
        ht_products_done<0, COLUMNS / 2>(group.sums[0]);
    }
    __syncthreads();  // the ring is read, and results go through the rows' place
    group.added_up();
    group.write(at, warp, out);
    __syncthreads();  // the next tile's rows are brought there
}

// Meetings in shared memory: who waits goes on when all have arrived (PTX ISA, *mbarrier*).
HT_DEVICE void ht_meeting(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(at), "r"(arrivals) : "memory");
}
HT_DEVICE void ht_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" : : "r"(at), "r"(1) : "memory");
}
HT_DEVICE void ht_arrive_with_copies(uint32_t at, bool copies) {  // when all copies that the thread has asked for have come
    if (copies) asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" : : "r"(at) : "memory");
    else ht_written_for_products(), ht_arrive(at);
}
HT_DEVICE void ht_meet(uint32_t at, int parity) {
    asm volatile("{.reg .pred P1; HT_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%0], %1; @P1 bra.uni HT_DONE; bra.uni HT_WAIT; HT_DONE:}"
                 :
                 : "r"(at), "r"(parity)
                 : "memory");
}

// A block of GROUPS groups and four warps that bring what they multiply. Keys and values of a stage have come, and are read; so have
// and are the rows. `slot`, `turn`, `round` are each side's own, and go on from tile to tile of rows.
template <int GROUPS, int KEYS, int STAGES, int DEPTH, int COLUMNS, class T>
struct ht_fed : ht_panels<GROUPS, KEYS, STAGES, DEPTH, COLUMNS, T> {
    using Panels = ht_panels<GROUPS, KEYS, STAGES, DEPTH, COLUMNS, T>;
    static constexpr int BRING = 128, MULTIPLY = GROUPS * 4;  // who arrives: threads, warps
    uint32_t meetings;
    int slot, turn, round;
    HT_DEVICE ht_fed() : slot(0), turn(0), round(0) {
        meetings = (uint32_t)__cvta_generic_to_shared(this->values + STAGES * Panels::VALUE_TILE);
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; s++) {
                ht_meeting(keys_come(s), BRING), ht_meeting(values_come(s), BRING);
                ht_meeting(keys_read(s), MULTIPLY), ht_meeting(values_read(s), MULTIPLY);
            }
            ht_meeting(rows_come(), BRING), ht_meeting(rows_read(), MULTIPLY);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }
    HT_DEVICE uint32_t keys_come(int slot) const { return meetings + slot * 8; }
    HT_DEVICE uint32_t values_come(int slot) const { return meetings + (STAGES + slot) * 8; }
    HT_DEVICE uint32_t keys_read(int slot) const { return meetings + (2 * STAGES + slot) * 8; }
    HT_DEVICE uint32_t values_read(int slot) const { return meetings + (3 * STAGES + slot) * 8; }
    HT_DEVICE uint32_t rows_come() const { return meetings + 4 * STAGES * 8; }
    HT_DEVICE uint32_t rows_read() const { return meetings + (4 * STAGES + 1) * 8; }

    // Registers go from the warps that bring to those that multiply. Each must stay in a branch of its own, or ptxas ignores it.
    HT_DEVICE void brings() const {
        if constexpr (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    }
    HT_DEVICE void multiplies() const {
        if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    }
    // Tiles of keys that the rows from `base` on see.
    template <class Seen>
    HT_DEVICE static int tiles(const ht_rows<const T>& q, int base, Seen seen) {
        return (seen(min(base + GROUPS * 64 - 1, q.count - 1)) + KEYS - 1) / KEYS;
    }
    template <class Seen>
    HT_DEVICE void bring(const ht_rows<const T>& q, const ht_rows<const T>& k, const ht_rows<const T>& v, int base, Seen seen) {
        const int end = tiles(q, base, seen);
        ht_meet(rows_read(), round ^ 1);
        ht_bring_swizzled<GROUPS * 64, DEPTH, BRING>(this->rows, q, base);
        ht_arrive_with_copies(rows_come(), q.whole);
        round ^= 1;
        for (int tile = 0; tile < end; tile++) {
            ht_meet(keys_read(slot), turn ^ 1);
            ht_bring_swizzled<KEYS, DEPTH, BRING>(this->keys + slot * Panels::KEY_TILE, k, tile * KEYS);
            ht_arrive_with_copies(keys_come(slot), k.whole);
            ht_meet(values_read(slot), turn ^ 1);
            ht_bring_swizzled<KEYS, COLUMNS, BRING>(this->values + slot * Panels::VALUE_TILE, v, tile * KEYS);
            ht_arrive_with_copies(values_come(slot), v.whole);
            next(slot, turn);
        }
    }
    HT_DEVICE static void next(int& slot, int& turn) {
        if (++slot == STAGES) slot = 0, turn ^= 1;
    }
    template <class Score, class Seen>
    HT_DEVICE void attend(const ht_rows<const T>& q, const ht_rows<const T>& k, const ht_rows<T>& out, int base, float factor,
                          Score score, Seen seen) {
        const int warp = ht_warp() - 4, end = tiles(q, base, seen);
        const bool first = threadIdx.x % 32 == 0;
        ht_group<KEYS, COLUMNS, T, Panels> group(*this, warp, base, q.count - 1, k.count - 1, factor, seen);
        ht_meet(rows_come(), round);
        round ^= 1;
        if (end > 0) {
            ht_meet(keys_come(slot), turn);
            ht_written_for_products();
            ht_products_ready();
            group.multiply_keys(slot);
            ht_products_done<0, KEYS / 2>(group.x[0]);
            if (first) ht_arrive(keys_read(slot));
            group.powers(0, score);
            ht_packed<KEYS>(group.power, group.x, T());
        }
        int ahead = slot, then = turn;  // of keys; values are a step behind
        for (int tile = 0; tile < end - 1; tile++) {
            next(ahead, then);
            ht_meet(keys_come(ahead), then);
            ht_meet(values_come(slot), turn);
            ht_written_for_products();
            ht_products_ready();
            group.multiply_keys(ahead);
            group.multiply_values(slot);
            ht_products_done<1, KEYS / 2>(group.x[0]);
            if (first) ht_arrive(keys_read(ahead));
            group.powers(tile + 1, score);
            group.values_done();
            if (first) ht_arrive(values_read(slot));
            group.rescaled();
            slot = ahead, turn = then;
        }
        if (end > 0) {
            ht_meet(values_come(slot), turn);
            ht_written_for_products();
            ht_products_ready();
            group.multiply_values(slot);
            ht_products_done<0, COLUMNS / 2>(group.sums[0]);
            if (first) ht_arrive(values_read(slot));
            next(slot, turn);
        }
        ht_sync_some(1 + warp / 4, 128);  // the group's rows are read: results go through their place
        group.added_up();
        group.write(*this, warp, out);
        __syncwarp();
        if (first) ht_arrive(rows_read());
    }
};
