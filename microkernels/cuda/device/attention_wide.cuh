// Attention by wgmma (sm_90a; Shah et al. 2024, FlashAttention-3): as attention.cuh, but that a group of four warps has 64 rows and
// multiplies them at once. Rows, keys and values lie in panels of 64 columns in the 128-byte swizzle; the products of the rows with
// the next tile of keys and those with the values of this one are under way while exponentials are computed.
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
            const int bytes = row < there ? 16 : 0;
            const uint32_t at = address + row * 128 + (chunk % 8 ^ (own + row) % 8) * 16;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(source), "r"(bytes) : "memory");
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

// As ht_attend, a tile of GROUPS x 64 rows. The ring has STAGES tiles of keys and as many of values; a tile of keys is asked for one
// step before its values, since it is read one step before.
template <int GROUPS, int KEYS, int STAGES, int DEPTH, int COLUMNS, class T, class Score, class Seen, class Record>
HT_DEVICE void ht_attend_wide(const ht_rows<const T>& q, const ht_rows<const T>& k, const ht_rows<const T>& v, const ht_rows<T>& out,
                              int base, int part, int parts, float factor, Score score, Seen seen, float* left, Record record) {
    constexpr int STEPS = (DEPTH + 15) / 16, PANELS = (STEPS + 3) / 4, V_PANELS = (COLUMNS + 63) / 64;
    constexpr int THREADS = GROUPS * 128, ROWS = GROUPS * 64, PANEL = 64 * 2 / 16;  // a row of a panel, in units of 16 bytes
    constexpr int KEY_TILE = KEYS * PANELS * 64, VALUE_TILE = KEYS * V_PANELS * 64;
    constexpr float LOG2_E = 1.4426950408889634f;
    extern __shared__ __align__(1024) uchar ht_attention_wide[];  // the swizzle's pattern repeats every 1024 bytes
    T* const rows = (T*)ht_attention_wide;
    T* const keys = rows + ROWS * (PANELS > V_PANELS ? PANELS : V_PANELS) * 64;
    T* const values = keys + STAGES * KEY_TILE;
    const int lane = threadIdx.x % 32, warp = ht_warp(), own = base + warp * 16, end_row = q.count - 1;
    const int tiles = (seen(min(base + ROWS - 1, end_row)) + KEYS - 1) / KEYS;
    const int first = (int)((long long)tiles * part / parts), end = (int)((long long)tiles * (part + 1) / parts);
    const int plain = seen(min(own, end_row)) / KEYS;
    const int limit[2] = {seen(min(own + lane / 4, end_row)), seen(min(own + 8 + lane / 4, end_row))};
    const float scale = factor * LOG2_E;

    if (first < end) {
        ht_bring_swizzled<ROWS, DEPTH, THREADS>(rows, q, base);
        ht_bring_swizzled<KEYS, DEPTH, THREADS>(keys, k, first * KEYS);
    }
    ht_copies_begun();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < end) ht_bring_swizzled<KEYS, COLUMNS, THREADS>(values + s * VALUE_TILE, v, (first + s) * KEYS);
        if (first + s + 1 < end)
            ht_bring_swizzled<KEYS, DEPTH, THREADS>(keys + (s + 1) * KEY_TILE, k, (first + s + 1) * KEYS);
        ht_copies_begun();
    }
    const uint32_t at_rows = ht_descriptor_low(rows + warp / 4 * (64 * 64), 1), at_keys = ht_descriptor_low(keys, 1);
    const uint32_t at_values = ht_descriptor_low(values, KEYS * PANEL);
    float most[2], total[2] = {0.0f, 0.0f}, before[2], x[KEYS / 8][4], sums[COLUMNS / 8][4];
    uint32_t power[KEYS / 4];
    most[0] = most[1] = __uint_as_float(0xff800000u);
#pragma unroll
    for (int j = 0; j < COLUMNS / 2; j++) sums[j / 4][j % 4] = 0.0f;

    const auto multiply_keys = [&](int slot) {
#pragma unroll
        for (int kk = 0; kk < STEPS; kk++)
            ht_warpgroup<KEYS, T>::scores(
                x[0], ht_descriptor(at_rows + (kk / 4 * (ROWS * PANEL) + kk % 4 * 2), 64),
                ht_descriptor(at_keys + slot * (KEY_TILE / 8) + (kk / 4 * (KEYS * PANEL) + kk % 4 * 2), 64), kk > 0);
        ht_products_begun();
    };
    const auto multiply_values = [&](int slot) {
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++)
            ht_warpgroup<COLUMNS, T>::sums(
                sums[0], power + kk * 4, ht_descriptor(at_values + slot * (VALUE_TILE / 8) + kk * (16 * PANEL), 64));
        ht_products_begun();
    };
    const auto powers = [&](int tile) {
        ht_scores<KEYS>(x, limit, own, tile * KEYS, tile >= plain, score, end_row, k.count - 1);
        ht_powers<KEYS, 2>(x, most, total, before, scale);
    };

    if (first < end) {
        ht_copies_done<STAGES - 1>();
        ht_written_for_products();
        __syncthreads();
        ht_products_ready();
        multiply_keys(0);
        ht_products_done<0, KEYS / 2>(x[0]);
        powers(first);
        ht_packed<KEYS>(power, x, T());
    }
    int slot = 0;
    for (int tile = first; tile < end - 1; tile++) {
        ht_copies_done<STAGES - 2>();
        ht_written_for_products();
        __syncthreads();
        const int next = slot == STAGES - 1 ? 0 : slot + 1, freed = slot == 0 ? STAGES - 1 : slot - 1;
        ht_products_ready();
        multiply_keys(next);
        multiply_values(slot);
        if (tile + STAGES - 1 < end)
            ht_bring_swizzled<KEYS, COLUMNS, THREADS>(values + freed * VALUE_TILE, v, (tile + STAGES - 1) * KEYS);
        if (tile + STAGES < end)
            ht_bring_swizzled<KEYS, DEPTH, THREADS>(keys + slot * KEY_TILE, k, (tile + STAGES) * KEYS);
        ht_copies_begun();
        ht_products_done<1, KEYS / 2>(x[0]);
        powers(tile + 1);
        // Never so. A branch that all exponentials come before keeps the wait behind them: ptxas moves it up to the last branch.
        if (ht_uniform(total[0] + total[1] < 0.0f)) __syncwarp();
        ht_products_done<0, COLUMNS / 2>(sums[0]);
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) sums[j / 4][j % 4] *= before[j / 2 % 2];
        ht_packed<KEYS>(power, x, T());
        slot = next;
    }
    ht_copies_done<0>();
    ht_written_for_products();
    __syncthreads();
    if (first < end) {
        ht_products_ready();
        multiply_values(slot);
        ht_products_done<0, COLUMNS / 2>(sums[0]);
    }
    __syncthreads();  // the ring is read, and results go through the rows' place
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    }
    if (left != nullptr) {
        ht_leave<COLUMNS>(sums, most, total, own, end_row, factor, left, record);
        return;
    }
    // Through the warp's own rows of shared memory, so that neighbours in memory are written at once.
    const auto placed = [&](int row, int column) {
        return rows + column / 64 * (ROWS * 64) + (warp * 16 + row) * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8;
    };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float share = 1.0f / (k.count == 0 ? 1.0f : total[r]);
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
    __syncthreads();  // the next tile's rows are brought there
}
