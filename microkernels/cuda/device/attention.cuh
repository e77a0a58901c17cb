// Attention on tensor cores: softmax(Q K^T) V by mma.sync.m16n8k16. What the first product leaves in a thread's registers is the
// operand of the second one as it is (Dao 2023, FlashAttention-2; PTX ISA, fragments of mma). A block has a tile of rows, each of
// its warps 16 or 32 of them; tiles of keys and of their values come by cp.async through a ring of stages.
HT_DEVICE float ht_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
HT_DEVICE void ht_mma_16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, ht_bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
HT_DEVICE void ht_mma_16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, ht_half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
HT_DEVICE void ht_matrices(uint32_t* to, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
HT_DEVICE void ht_matrices_turned(uint32_t* to, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
HT_DEVICE void ht_copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
HT_DEVICE void ht_copies_done() {  // all groups but the last PENDING
    static_assert(PENDING >= 0 && PENDING < 4, "a ring has up to four stages");
    if constexpr (PENDING == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    if constexpr (PENDING == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    if constexpr (PENDING == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    if constexpr (PENDING == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
}

template <class T>
struct ht_rows {  // of a matrix whose columns are neighbours; `whole`: every row begins at 16 bytes
    T* at;
    long long stride;
    int count;
    bool whole;
    HT_DEVICE ht_rows(T* at, long long stride, long long count) : at(at), stride(stride), count((int)count) {
        whole = ((unsigned long long)at | (unsigned long long)stride * sizeof(T)) % 16 == 0;
    }
};

// Eight elements on their way into shared memory; zeros where there are none.
HT_DEVICE void ht_bring_piece(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// ROWS rows from `first` on into shared memory, PITCH elements apart; rows and columns that are not there are zeros. A thread has one
// column and steps down the rows, so that a copy costs a comparison and an addition; where no byte is read the address may lie behind.
template <int ROWS, int COLUMNS, int THREADS, class T>
HT_DEVICE void ht_bring(T* to, const ht_rows<const T>& from, int first) {
    constexpr int WIDTH = (COLUMNS + 15) / 16 * 16, CHUNKS = WIDTH / 8, PITCH = WIDTH + 8, STEP = THREADS / CHUNKS;
    static_assert(STEP > 0, "a block has a thread for every 8 columns");
    const int own = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * 8;
    const int there = (column < COLUMNS ? from.count - first : 0) - own;
    if (THREADS % CHUNKS != 0 && own >= STEP) return;
    const T* source = from.at + (first + own) * from.stride + column;
    T* const place = to + own * PITCH + column;
    if (from.whole) {
        const uint32_t address = (uint32_t)__cvta_generic_to_shared(place);
#pragma unroll
        for (int row = 0; row < ROWS; row += STEP, source += STEP * from.stride) {
            if (ROWS % STEP != 0 && own >= ROWS - row) break;
            ht_bring_piece(address + row * PITCH * 2, source, row < there);
        }
        return;
    }
#pragma unroll 1
    for (int row = 0; row < ROWS && own < ROWS - row; row += STEP, source += STEP * from.stride) {
#pragma unroll
        for (int e = 0; e < 8; e++) place[row * PITCH + e].bits = row < there ? source[e].bits : 0;
    }
}

// A thread's part of 16 rows x KEYS products, as mma and wgmma leave it, into scores: of the rows from `row` and the keys from `key` on.
// `some`: a row of these sees a part of the keys alone.
template <int KEYS, class Score>
HT_DEVICE void ht_scores(float (*x)[4], const int* limit, int row, int key, bool some, Score score, int end_row, int end_key) {
    row += threadIdx.x % 32 / 4, key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < KEYS / 2; j++) {
        float& one = x[j / 4][j % 4];
        one = score(min(row + j / 2 % 2 * 8, end_row), min(key + j / 4 * 8 + j % 2, end_key), one);
    }
    if (some) {
#pragma unroll
        for (int j = 0; j < KEYS / 2; j++)
            if (key + j / 4 * 8 + j % 2 >= limit[j / 2 % 2]) x[j / 4][j % 4] = __uint_as_float(0xff800000u);
    }
}
// Scores into exp(score - maximum so far), for the rows lane/4 and lane/4 + 8; `before`: what the sums so far are to be multiplied by.
// CHAINS, one or two, of maxima and of sums: two where few warps share a scheduler.
template <int KEYS, int CHAINS>
HT_DEVICE void ht_powers(float (*x)[4], float* most, float* total, float* before, float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float tops[CHAINS], sum[CHAINS];
#pragma unroll
        for (int c = 0; c < CHAINS; c++) tops[c] = most[r], sum[c] = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 4; j++) tops[j % CHAINS] = fmaxf(tops[j % CHAINS], x[j / 2][2 * r + j % 2]);
        float top = fmaxf(tops[0], tops[CHAINS - 1]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float moved = top == __uint_as_float(0xff800000u) ? 0.0f : top * scale;
        before[r] = ht_exp2(fmaf(most[r], scale, -moved));
        most[r] = top;
#pragma unroll
        for (int j = 0; j < KEYS / 4; j++) {
            float& one = x[j / 2][2 * r + j % 2];
            one = ht_exp2(fmaf(one, scale, -moved));
            sum[j % CHAINS] += one;
        }
        total[r] = fmaf(total[r], before[r], CHAINS == 1 ? sum[0] : sum[0] + sum[CHAINS - 1]);
    }
}

// All that a part knows of a thread's two rows (sums, maximum, total) to left + record(row).
template <int COLUMNS, class Record>
HT_DEVICE void ht_leave(const float (*sums)[4], const float* most, const float* total, int row, int end_row, float factor, float* left,
                        Record record) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + r * 8 + lane / 4 > end_row) continue;
        float* const to = left + record(row + r * 8 + lane / 4);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) to[j * 8 + lane % 4 * 2 + e] = sums[j][r * 2 + e];
        if (lane % 4 == 0) {
            constexpr int LINE = (COLUMNS + 31) / 32 * 32;
            to[LINE] = most[r] * factor, to[LINE + 1] = total[r];
        }
    }
}

// A tile of WARPS x ROWS rows from `base` on, of part `part` of its tiles of keys. score(row, key, x): what the score of a product x
// is, but for `factor`; seen(row): how many keys a row sees, more the later it comes. Into `out`, or where `left` is given all that a
// part knows of a row (sums, maximum, total) to left + record(row).
template <int WARPS, int ROWS, int KEYS, int STAGES, int DEPTH, int COLUMNS, class T, class Score, class Seen, class Record>
HT_DEVICE void ht_attend(const ht_rows<const T>& q, const ht_rows<const T>& k, const ht_rows<const T>& v, const ht_rows<T>& out,
                         int base, int part, int parts, float factor, Score score, Seen seen, float* left, Record record) {
    constexpr int WIDTH = (DEPTH + 15) / 16 * 16, OUT = (COLUMNS + 15) / 16 * 16, TILES = ROWS / 16, THREADS = WARPS * 32;
    constexpr int PITCH = WIDTH + 8, V_PITCH = OUT + 8, OWN = WARPS * ROWS * (WIDTH > OUT ? PITCH : V_PITCH);
    constexpr bool HELD = TILES * WIDTH <= 128;  // the rows' operand stays in registers
    constexpr float LOG2_E = 1.4426950408889634f;
    extern __shared__ __align__(128) uchar ht_attention[];
    T* const rows = (T*)ht_attention;
    T* const keys = rows + OWN;
    T* const values = keys + STAGES * KEYS * PITCH;
    const int lane = threadIdx.x % 32, warp = ht_warp(), own = base + warp * ROWS, end_row = q.count - 1;
    const int tiles = (seen(min(base + WARPS * ROWS - 1, end_row)) + KEYS - 1) / KEYS;
    const int first = (int)((long long)tiles * part / parts), end = (int)((long long)tiles * (part + 1) / parts);
    const int stop = own <= end_row ? seen(min(own + ROWS - 1, end_row)) : 0, plain = seen(min(own, end_row)) / KEYS;
    int limit[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) limit[i / 2][i % 2] = seen(min(own + i * 8 + lane / 4, end_row));
    const float scale = factor * LOG2_E;

    ht_bring<WARPS * ROWS, DEPTH, THREADS>(rows, q, base);
    ht_copies_begun();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < end) {
            ht_bring<KEYS, DEPTH, THREADS>(keys + s * KEYS * PITCH, k, (first + s) * KEYS);
            ht_bring<KEYS, COLUMNS, THREADS>(values + s * KEYS * V_PITCH, v, (first + s) * KEYS);
        }
        ht_copies_begun();
    }
    const uint32_t at_rows = (uint32_t)__cvta_generic_to_shared(rows + (warp * ROWS + lane % 16) * PITCH + lane / 16 * 8);
    const uint32_t at_keys = (uint32_t)__cvta_generic_to_shared(keys + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8);
    const uint32_t at_values = (uint32_t)__cvta_generic_to_shared(values + lane % 16 * V_PITCH + lane / 16 * 8);
    uint32_t held[HELD ? TILES : 1][HELD ? WIDTH / 16 : 1][4];
    if constexpr (HELD) {
        ht_copies_done<STAGES - 1>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int kk = 0; kk < WIDTH / 16; kk++) ht_matrices(held[i][kk], at_rows + (i * 16 * PITCH + kk * 16) * 2);
    }
    float most[TILES][2], total[TILES][2], sums[TILES][OUT / 8][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        most[i][0] = most[i][1] = __uint_as_float(0xff800000u);
        total[i][0] = total[i][1] = 0.0f;
#pragma unroll
        for (int j = 0; j < OUT / 8 * 4; j++) sums[i][j / 4][j % 4] = 0.0f;
    }

    int stage = 0, freed = STAGES - 1;
    for (int tile = first; tile < end; tile++) {
        ht_copies_done<STAGES - 2>();
        __syncthreads();
        if (tile + STAGES - 1 < end) {
            ht_bring<KEYS, DEPTH, THREADS>(keys + freed * KEYS * PITCH, k, (tile + STAGES - 1) * KEYS);
            ht_bring<KEYS, COLUMNS, THREADS>(values + freed * KEYS * V_PITCH, v, (tile + STAGES - 1) * KEYS);
        }
        ht_copies_begun();
        const int start = tile * KEYS;
        const uint32_t of_keys = at_keys + stage * (KEYS * PITCH * 2), of_values = at_values + stage * (KEYS * V_PITCH * 2);
        freed = stage;
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        if (start >= stop) continue;  // nothing that this warp's rows see; its barriers are the block's
        float x[TILES][KEYS / 8][4];
#pragma unroll
        for (int i = 0; i < TILES * KEYS / 2; i++) x[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4] = 0.0f;
#pragma unroll
        for (int kk = 0; kk < WIDTH / 16; kk++) {
            uint32_t row[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                if constexpr (HELD) {
#pragma unroll
                    for (int e = 0; e < 4; e++) row[i][e] = held[i][kk][e];
                } else {
                    ht_matrices(row[i], at_rows + (i * 16 * PITCH + kk * 16) * 2);
                }
            }
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                uint32_t key[4];
                ht_matrices(key, of_keys + (j * 16 * PITCH + kk * 16) * 2);
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    ht_mma_16(x[i][2 * j], row[i], key[0], key[1], T());
                    ht_mma_16(x[i][2 * j + 1], row[i], key[2], key[3], T());
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES; i++)
            ht_scores<KEYS>(x[i], limit[i], own + i * 16, start, tile >= plain, score, end_row, k.count - 1);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            float before[2];
            ht_powers<KEYS, 1>(x[i], most[i], total[i], before, scale);
#pragma unroll
            for (int j = 0; j < OUT / 2; j++) sums[i][j / 4][j % 4] *= before[j / 2 % 2];
        }
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++) {
            uint32_t power[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float* const pair = &x[i][2 * kk + e / 2][e % 2 * 2];
                    power[i][e] = ht_pair(T(), pair[0], pair[1]);
                }
#pragma unroll
            for (int j = 0; j < OUT / 16; j++) {
                uint32_t value[4];
                ht_matrices_turned(value, of_values + (kk * 16 * V_PITCH + j * 16) * 2);
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    ht_mma_16(sums[i][2 * j], power[i], value[0], value[1], T());
                    ht_mma_16(sums[i][2 * j + 1], power[i], value[2], value[3], T());
                }
            }
        }
    }
    ht_copies_done<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        float& one = total[i / 2][i % 2];
        one += __shfl_xor_sync(0xffffffffu, one, 1);
        one += __shfl_xor_sync(0xffffffffu, one, 2);
    }
    if (left != nullptr) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
            ht_leave<COLUMNS>(sums[i], most[i], total[i], own + i * 16, end_row, factor, left, record);
        return;
    }
    // Through the warp's own rows of shared memory, so that neighbours in memory are written at once.
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        const float share = 1.0f / (k.count == 0 ? 1.0f : total[i / 2][i % 2]);
        T* const to = rows + (warp * ROWS + i * 8 + lane / 4) * V_PITCH + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < OUT / 8; j++) {
            const float* const pair = &sums[i / 2][j][i % 2 * 2];
            *(uint32_t*)(to + j * 8) = ht_pair(T(), pair[0] * share, pair[1] * share);
        }
    }
    __syncwarp();
    for (int i = lane; i < ROWS * (COLUMNS / 8); i += 32) {
        const int row = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
        if (own + row > end_row) break;
        const T* const from = rows + (warp * ROWS + row) * V_PITCH + column;
        T* const to = out.at + (own + row) * out.stride + column;
        if (out.whole) *(uint4*)to = *(const uint4*)from;
        else
#pragma unroll
            for (int e = 0; e < 8; e++) to[e].bits = from[e].bits;
    }
    __syncthreads();  // the next tile's rows are brought there
}
