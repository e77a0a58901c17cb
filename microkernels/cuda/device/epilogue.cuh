// Accumulators of whole tiles: how their neighbours of a row come together (result.cuh says what becomes of those then).

// ---- accumulators of mma.m16n8 and wgmma: FRAGMENTS of 16 rows, ROW_STEP apart, by COLUMNS, all of one warp
// Eight rows at a time go through the warp's own shared memory (8 * ht_pitch<COLUMNS>::floats floats). The pitch makes the four rows
// that half a warp stores at once meet different banks; readers of 32 bytes take the halves in turns.
template <int COLUMNS>
struct ht_pitch {
    enum { floats = COLUMNS % 16 == 8 ? COLUMNS : COLUMNS + 8 };
};

template <int COLUMNS>
HT_DEVICE void ht_stage(float* stage, const float* sums, int lane) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        const float2 pair = {sums[j * 4], sums[j * 4 + 1]};
        *(float2*)(stage + lane / 4 * ht_pitch<COLUMNS>::floats + j * 8 + lane % 4 * 2) = pair;
    }
}

template <int N>
HT_DEVICE void ht_unstage(float* v, const float* stage, bool turned) {
#pragma unroll
    for (int part = 0; part < N / 4; part++) {
        const float4 raw = *(const float4*)(stage + (part ^ (int)(turned && N == 8)) * 4);
        v[part * 4] = raw.x, v[part * 4 + 1] = raw.y, v[part * 4 + 2] = raw.z, v[part * 4 + 3] = raw.w;
    }
    if (N == 8) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float low = v[i], high = v[i + 4];
            v[i] = turned ? high : low, v[i + 4] = turned ? low : high;
        }
    }
}

// Four threads that hold a row's columns in pairs: thread t of them gets the t-th word of each.
HT_DEVICE void ht_turn_quad(uint32_t* w, int lane) {
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2) {
        const bool upper = lane & apart;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int low = apart == 1 ? 2 * i : i, high = low + apart;
            const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], apart);
            w[low] = upper ? other : w[low], w[high] = upper ? w[high] : other;
        }
    }
}

// A thread's four pairs of 32 columns of what is added, from the row at `from`; zeros where there is nothing.
template <class T>
HT_DEVICE void ht_pairs(uint32_t* words, const T* from, bool there, int column0, int n, int lane) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int column = column0 + j * 8 + lane % 4 * 2;
        words[j] = there && column < n ? *(const uint32_t*)(from + column) : 0;
    }
}
template <class T>
HT_DEVICE void ht_add_pair(float* v, uint32_t raw) {
    T low, high;
    low.bits = (uint16_t)raw, high.bits = (uint16_t)(raw >> 16);
    v[0] += low, v[1] += high;
}

// The same of a residual, which lies as Y does.
template <class T, class BESIDE>
HT_DEVICE void ht_residual_pairs(uint32_t* words, const ht_cuda_args& a, const BESIDE& beside, int row, int column0, int lane) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int column = column0 + j * 8 + lane % 4 * 2;
        const bool there = a.residual && row < a.m && column < a.n;
        words[j] = there ? *(const uint32_t*)((const T*)a.residual + beside.place(a, row, column)) : 0;
    }
}

// 2-byte elements in whole pieces without shared memory: 32 columns of a row are 16 bytes of each of four threads. The next
// ones' bias is on its way meanwhile; more at once would not fit the registers beside the sums.
template <uint64_t STEPS, class T, int FRAGMENTS, int COLUMNS, int ROW_STEP, bool MORE, class BESIDE>
HT_DEVICE void ht_put_turned(const ht_cuda_args& a, const BESIDE& beside, const float* sums, int row0, int column0, int lane) {
    constexpr int ACROSS = COLUMNS / 32, COUNT = 2 * FRAGMENTS * ACROSS;
    constexpr bool ADDED = STEPS > 1 && ht_among<STEPS>::of(HT_STEP_RESIDUAL);
    uint32_t bias[4], next[4], residual[4];
    if (ADDED) ht_residual_pairs<T>(next, a, beside, row0 + lane / 4, column0, lane);
    if (MORE) ht_pairs(next, (const T*)a.bias, a.bias, column0, a.n, lane);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int row = row0 + i / ACROSS / 2 * ROW_STEP + i / ACROSS % 2 * 8 + lane / 4, column = column0 + i % ACROSS * 32;
        if (MORE) {
            ht_pairs(residual, (const T*)a.residual + (int64_t)row * a.ldy, a.residual && row < a.m, column, a.n, lane);
#pragma unroll
            for (int j = 0; j < 4; j++) bias[j] = next[j];
            if (i + 1 < COUNT) ht_pairs(next, (const T*)a.bias, a.bias, column0 + (i + 1) % ACROSS * 32, a.n, lane);
        }
        if (ADDED) {
#pragma unroll
            for (int j = 0; j < 4; j++) residual[j] = next[j];
            const int after = i + 1, line = row0 + after / ACROSS / 2 * ROW_STEP + after / ACROSS % 2 * 8 + lane / 4;
            if (after < COUNT) ht_residual_pairs<T>(next, a, beside, line, column0 + after % ACROSS * 32, lane);
        }
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float* pair = sums + i / ACROSS / 2 * COLUMNS / 2 + i / ACROSS % 2 * 2 + (i % ACROSS * 4 + j) * 4;
            float v[2] = {pair[0], pair[1]};
            if (MORE && a.bias) ht_add_pair<T>(v, bias[j]);
            if (MORE && a.residual) ht_add_pair<T>(v, residual[j]);
            if constexpr (STEPS > 1) {
                const int one = column + j * 8 + lane % 4 * 2;
                if (row < a.m && one < a.n) ht_built<STEPS, T, 2, true>(a, v, row, one, 0, beside, residual + j);
            }
            w[j] = ht_pair(T(), v[0], v[1]);
        }
        ht_turn_quad(w, lane);
        const uint4 piece = {w[0], w[1], w[2], w[3]};
        const int own = column + lane % 4 * 8;
        if (row < a.m && own < a.n) *(uint4*)((T*)a.y + beside.place(a, row, own)) = piece;
    }
}

// Partial sums of rows of an even number of columns: four threads store 32 bytes of a row.
template <int FRAGMENTS, int COLUMNS, int ROW_STEP>
HT_DEVICE void ht_put_partial(const ht_cuda_args& a, const float* sums, int row0, int column0, int lane) {
#pragma unroll
    for (int half = 0; half < 2 * FRAGMENTS; half++) {
        const int row = row0 + half / 2 * ROW_STEP + half % 2 * 8 + lane / 4;
        float* to = a.partial + ((int64_t)blockIdx.y * a.m + row) * a.n;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            const float* from = sums + half / 2 * COLUMNS / 2 + half % 2 * 2 + j * 4;
            const float2 pair = {from[0], from[1]};
            const int column = column0 + j * 8 + lane % 4 * 2;
            if (row < a.m && column < a.n) *(float2*)(to + column) = pair;
        }
    }
}

// The ways that need no shared memory; false where none fits.
template <uint64_t STEPS, class T, int FRAGMENTS, int COLUMNS, int ROW_STEP>
HT_DEVICE bool ht_stored_at_once(const ht_cuda_args& a, const ht_nothing& beside, const float* sums, int row0, int column0, int lane,
                                 bool whole) {
    if (a.splits > 1) {
        if (a.n % 2) return false;
        ht_put_partial<FRAGMENTS, COLUMNS, ROW_STEP>(a, sums, row0, column0, lane);
        return true;
    }
    if constexpr (STEPS != 1 && ht_wide<T>::elements == 8 && COLUMNS % 32 == 0) {
        if (!whole || (STEPS && a.y_type != HT_Y_OWN)) return false;
        if (STEPS || (!a.bias && !a.residual)) {
            ht_put_turned<STEPS, T, FRAGMENTS, COLUMNS, ROW_STEP, false>(a, beside, sums, row0, column0, lane);
            return true;
        }
        ht_put_turned<STEPS, T, FRAGMENTS, COLUMNS, ROW_STEP, true>(a, beside, sums, row0, column0, lane);
        return true;
    }
    return false;
}
// Of a batch, of windows and of phases: where nothing is done to the sums but rounding, or the steps that a kernel is built for.
template <uint64_t STEPS, class T, int FRAGMENTS, int COLUMNS, int ROW_STEP, class ARGS, class BESIDE>
HT_DEVICE bool ht_stored_at_once(const ARGS& a, const BESIDE& beside, const float* sums, int row0, int column0, int lane, bool whole) {
    if constexpr (STEPS != 1 && ht_wide<T>::elements == 8 && COLUMNS % 32 == 0) {
        if (!whole || !beside.idle() || (STEPS ? a.y_type != HT_Y_OWN : a.bias || a.residual)) return false;
        ht_put_turned<STEPS, T, FRAGMENTS, COLUMNS, ROW_STEP, false>(a, beside, sums, row0, column0, lane);
        return true;
    }
    return false;
}

// Eight rows that a warp has staged, rounded into rows of Y that begin anywhere: neighbours of a warp write neighbours of a row.
template <class T, int COLUMNS, class BESIDE>
HT_DEVICE void ht_put_rows(const ht_cuda_args& a, const BESIDE& beside, const float* stage, int row, int column, int lane) {
    constexpr int SIDE = COLUMNS < 32 ? COLUMNS : 32;  // threads of a row
    const int own = lane % SIDE;
#pragma unroll
    for (int r = lane / SIDE; r < 8; r += 32 / SIDE) {
        if (row + r >= a.m) break;
        T* const to = (T*)a.y + beside.place(a, row + r, column + own);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += SIDE)
            if (own + c < COLUMNS && column + own + c < a.n) to[c] = (T)stage[r * ht_pitch<COLUMNS>::floats + own + c];
    }
}

// SYNC: threads that must meet before their shared memory is free; 0 where they have met. AT_ONCE: there are registers for the
// ways that need no shared memory.
template <uint64_t STEPS, class T, int FRAGMENTS, int COLUMNS, int ROW_STEP, int SYNC = 0, bool AT_ONCE = true, class ARGS>
HT_DEVICE void ht_store_fragments(const ARGS& a, const float* sums, void* shared, int warp, int row0, int column0) {
    const auto beside = ht_beside<T>(a);
    constexpr int N = ht_wide<T>::elements, PIECES = 8 * COLUMNS / N, PITCH = ht_pitch<COLUMNS>::floats;
    const int lane = ht_thread_again() % 32;
    float* stage = (float*)shared + warp * 8 * PITCH;
    const bool whole = ht_whole<T>(a);
    if (AT_ONCE && ht_stored_at_once<STEPS, T, FRAGMENTS, COLUMNS, ROW_STEP>(a, beside, sums, row0, column0, lane, whole)) return;
    if (SYNC) ht_sync_some(1, SYNC);
    if (STEPS != 1 && whole) {
#pragma unroll
        for (int half = 0; half < 2 * FRAGMENTS; half++) {
            __syncwarp();
            ht_stage<COLUMNS>(stage, sums + half / 2 * COLUMNS / 2 + half % 2 * 2, lane);
            __syncwarp();
#pragma unroll 1  // more at once would not fit the registers beside the sums
            for (int first = 0; first < PIECES; first += 32) {
                const int piece = first + lane, r = piece / (COLUMNS / N), c = piece % (COLUMNS / N) * N;
                if (PIECES % 32 && piece >= PIECES) continue;
                float v[N];
                ht_unstage<N>(v, stage + r * PITCH + c, lane & 4);
                ht_put_some<STEPS, T, N>(a, v, row0 + half / 2 * ROW_STEP + half % 2 * 8 + r, column0 + c, beside);
            }
        }
        return;
    }
    const bool partial = a.splits > 1;
    if (!STEPS && !partial && !a.bias && !a.residual && beside.idle()) {
#pragma unroll
        for (int half = 0; half < 2 * FRAGMENTS; half++) {
            __syncwarp();
            ht_stage<COLUMNS>(stage, sums + half / 2 * COLUMNS / 2 + half % 2 * 2, lane);
            __syncwarp();
            ht_put_rows<T, COLUMNS>(a, beside, stage, row0 + half / 2 * ROW_STEP + half % 2 * 8, column0, lane);
        }
        return;
    }
#pragma unroll 1
    for (int half = 0; half < 2 * FRAGMENTS; half++) {
        const int row = row0 + half / 2 * ROW_STEP + half % 2 * 8;
        __syncwarp();
#pragma unroll
        for (int same = 0; same < 2 * FRAGMENTS; same++)
            if (same == half) ht_stage<COLUMNS>(stage, sums + same / 2 * COLUMNS / 2 + same % 2 * 2, lane);
        __syncwarp();
        if (STEPS == 1 && whole) {
#pragma unroll 1
            for (int piece = lane; piece < 2 * COLUMNS; piece += 32) {
                const int r = piece / (COLUMNS / 4), c = piece % (COLUMNS / 4) * 4;
                float v[4];
                ht_unstage<4>(v, stage + r * PITCH + c, false);
                ht_put_some<STEPS, T, 4>(a, v, row + r, column0 + c, beside);
            }
        } else {
            constexpr int AHEAD = STEPS || COLUMNS % 16 ? 1 : 4;  // with steps more would not fit the registers beside the sums
#pragma unroll 1
            for (int first = lane; first < 8 * COLUMNS; first += 32 * AHEAD) {
                float v[AHEAD];
                int rows[AHEAD], columns[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    const int one = first + 32 * i;
                    v[i] = stage[one / COLUMNS * PITCH + one % COLUMNS];
                    rows[i] = row + one / COLUMNS, columns[i] = column0 + one % COLUMNS;
                }
                if (STEPS) ht_put_one<STEPS, T>(a, v[0], rows[0], columns[0], partial, beside);
                else ht_put_apart<T, AHEAD>(a, v, rows, columns, partial, beside);
            }
        }
    }
}

// The same accumulators where the instruction's rows are columns of Y and its columns Y's rows: 16 columns by COLUMNS rows a
// time go through shared memory, turned. Twenty floats between rows: what a warp stores at once meets every bank once.
template <uint64_t STEPS, class T, int FRAGMENTS, int COLUMNS, int ROW_STEP, int SYNC>
HT_DEVICE void ht_store_across(const ht_cuda_args& a, const float* sums, void* shared, int warp, int row0, int column0) {
    constexpr int PITCH = 20, N = STEPS == 1 ? 4 : ht_wide<T>::elements;
    const int lane = ht_thread_again() % 32;
    if (a.splits > 1) {  // eight threads have neighbours of a row: 32 bytes
        float* to = a.partial + (int64_t)blockIdx.y * a.m * a.n;
#pragma unroll
        for (int i = 0; i < FRAGMENTS * COLUMNS / 2; i++) {
            const int row = row0 + i % (COLUMNS / 2) / 4 * 8 + lane % 4 * 2 + i % 2;
            const int column = column0 + i / (COLUMNS / 2) * ROW_STEP + i % 4 / 2 * 8 + lane / 4;
            if (row < a.m && column < a.n) to[(int64_t)row * a.n + column] = sums[i];
        }
        return;
    }
    if (SYNC) ht_sync_some(1, SYNC);
    float* stage = (float*)shared + warp * COLUMNS * PITCH;
    const bool whole = ht_whole<T>(a);
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; fragment++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++)
            stage[(i / 4 * 8 + lane % 4 * 2 + i % 2) * PITCH + i % 4 / 2 * 8 + lane / 4] = sums[fragment * COLUMNS / 2 + i];
        __syncwarp();
        const int column = column0 + fragment * ROW_STEP;
        if (whole) {
#pragma unroll 1
            for (int piece = lane; piece < COLUMNS * 16 / N; piece += 32) {
                const int r = piece / (16 / N), c = piece % (16 / N) * N;
                float v[N];
                ht_unstage<N>(v, stage + r * PITCH + c, lane & 4);
                ht_put_some<STEPS, T, N>(a, v, row0 + r, column + c);
            }
        } else {
#pragma unroll 1
            for (int one = lane; one < COLUMNS * 16; one += 32)
                ht_put_one<STEPS, T>(a, stage[one / 16 * PITCH + one % 16], row0 + one / 16, column + one % 16, false);
        }
    }
}

// ---- fp32 sums of one thread: ROWS x COLUMNS, both in strips that lie ROW_STEP and COLUMN_STEP apart; four columns a strip
// Eight neighbours of a warp hold 128 bytes of a row of Y: stores are whole as they are.
template <uint64_t STEPS, int ROWS, int COLUMNS, int ROW_STRIP, int ROW_STEP, int COLUMN_STEP, class ARGS>
HT_DEVICE void ht_store_strips(const ARGS& a, const float* sums, int row0, int column0) {
    const auto beside = ht_beside<float>(a);
    const bool whole = ht_whole<float>(a);
    if (STEPS != 1 && whole) {
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
            const int r = i / (COLUMNS / 4), s = i % (COLUMNS / 4);
            float v[4] = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
            ht_put_some<STEPS, float, 4>(a, v, row0 + r / ROW_STRIP * ROW_STEP + r % ROW_STRIP, column0 + s * COLUMN_STEP, beside);
        }
        return;
    }
    const bool partial = a.splits > 1;
#pragma unroll 1
    for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
        const int r = i / (COLUMNS / 4), s = i % (COLUMNS / 4);
        const int row = row0 + r / ROW_STRIP * ROW_STEP + r % ROW_STRIP, column = column0 + s * COLUMN_STEP;
        float v[4];
#pragma unroll
        for (int same = 0; same < ROWS * COLUMNS / 4; same++)
#pragma unroll
            for (int q = 0; q < 4; q++) v[q] = same == i ? sums[same * 4 + q] : v[q];
        if (STEPS == 1 && whole) {
            ht_put_some<STEPS, float, 4>(a, v, row, column, beside);
        } else {
            if constexpr (STEPS) {
#pragma unroll 1
                for (int q = 0; q < 4; q++) {
                    ht_put_one<STEPS, float>(a, v[0], row, column + q, partial, beside);
                    v[0] = v[1], v[1] = v[2], v[2] = v[3];
                }
            } else {
                const int rows[4] = {row, row, row, row}, columns[4] = {column, column + 1, column + 2, column + 3};
                ht_put_apart<float, 4>(a, v, rows, columns, partial, beside);
            }
        }
    }
}
