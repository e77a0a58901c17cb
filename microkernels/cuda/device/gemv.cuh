// Few rows of X against all of W, on CUDA cores: W is read once, 16 bytes a lane, straight from memory; X stays in L1.
// W (n, k): lanes walk along k. W (k, n): LANES of them lie along n, V columns each, the others along k. Every sum ends in a
// reduction over the lanes along k, then over the DEEP warps that share k: both in fixed order.

template <class T, int V>
HT_DEVICE void ht_load(float* to, const T* from) {
    if constexpr (V == ht_wide<T>::elements) {
        ht_wide<T>::load(to, from);
    } else {
        struct alignas(V * sizeof(T)) ht_piece {
            T elements[V];
        };
        const ht_piece raw = *(const ht_piece*)from;
#pragma unroll
        for (int i = 0; i < V; i++) to[i] = raw.elements[i];
    }
}

// COUNT sums of every lane over the lanes that lie LANES apart, 32 / LANES of them; afterwards the g-th of these holds the sums from
// g * COUNT * LANES / 32 on, COUNT * LANES / 32 of them, at least one.
template <int COUNT, int LANES>
HT_DEVICE void ht_sum_lanes(float* sums, int lane) {
    int left = COUNT;
#pragma unroll
    for (int apart = 16; apart >= LANES; apart /= 2) {
        if (left == 1) {
            sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], apart);
            continue;
        }
        left /= 2;
        const bool upper = lane & apart;
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            if (i >= left) break;
            const float kept = upper ? sums[i + left] : sums[i], given = upper ? sums[i] : sums[i + left];
            sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, apart);
        }
    }
}

template <class T, int ROWS, int COLUMNS, int V>
HT_DEVICE void ht_gemv_step(const ht_cuda_args& a, float* sums, const T* const* w, int row0, int at) {
    float columns[COLUMNS][V];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) ht_load<T, V>(columns[c], w[c] + at);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float row[V];
        ht_load<T, V>(row, (const T*)a.x + (int64_t)min(row0 + r, a.m - 1) * a.ldx + at);
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sums[r * COLUMNS + c] += row[i] * columns[c][i];
    }
}

// The DEEP warps' sums, added in their order, into Y.
template <uint64_t STEPS, class T, int ROWS, int WIDTH, int DEEP, int THREADS>
HT_DEVICE void ht_gemv_store(const ht_cuda_args& a, float (*parts)[ROWS][WIDTH], int row0, int column0) {
    __syncthreads();
    constexpr int N = WIDTH % 4 ? 1 : 4;
    const bool pieces = N > 1 && ht_whole<T>(a);
    for (int one = threadIdx.x; one < (pieces ? ROWS * WIDTH / N : ROWS * WIDTH); one += THREADS) {
        const int r = one / (pieces ? WIDTH / N : WIDTH), c = one % (pieces ? WIDTH / N : WIDTH) * (pieces ? N : 1);
        float v[N] = {};
#pragma unroll
        for (int d = 0; d < DEEP; d++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (i == 0 || pieces) v[i] += parts[d][r][c + i];
        if constexpr (N > 1) {
            if (pieces) {
                ht_put_some<STEPS, T, N>(a, v, row0 + r, column0 + c);
                continue;
            }
        }
        ht_put_one<STEPS, T>(a, v[0], row0 + r, column0 + c, a.splits > 1);
    }
}

template <uint64_t STEPS, class T, int ROWS, int COLUMNS, int ACROSS, int DEEP, int V>
HT_DEVICE void ht_gemv(const ht_cuda_args& a, float* shared, int row0, int column0) {
    constexpr int STEP = DEEP * 32 * V, WIDTH = ACROSS * COLUMNS, COUNT = ROWS * COLUMNS, AHEAD = COLUMNS > 2 ? 1 : 4 / COLUMNS;
    const int warp = ht_warp(), lane = threadIdx.x % 32;
    const int across = warp % ACROSS, deep = warp / ACROSS;
    const T* w[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) w[c] = (const T*)a.w + (int64_t)min(column0 + across * COLUMNS + c, a.n - 1) * a.k;
    float sums[COUNT] = {};
    const int steps = (a.k + STEP - 1) / STEP, last = ht_last_step(a, steps), whole = min(last, a.k / STEP);
    int step = ht_first_step(a, steps);
    int at = (step * DEEP + deep) * 32 * V + lane * V;
#pragma unroll AHEAD
    for (; step < whole; step++, at += STEP) ht_gemv_step<T, ROWS, COLUMNS, V>(a, sums, w, row0, at);
    if (step < last && at < a.k) ht_gemv_step<T, ROWS, COLUMNS, V>(a, sums, w, row0, at);
    ht_sum_lanes<COUNT, 1>(sums, lane);
    float (*parts)[ROWS][WIDTH] = (float (*)[ROWS][WIDTH])shared;
    if (COUNT >= 32 || lane % (32 / COUNT) == 0) {
#pragma unroll
        for (int i = 0; i < (COUNT + 31) / 32; i++) {
            const int sum = lane * COUNT / 32 + i;
            parts[deep][sum / COLUMNS][across * COLUMNS + sum % COLUMNS] = sums[i];
        }
    }
    ht_gemv_store<STEPS, T, ROWS, WIDTH, DEEP, ACROSS * DEEP * 32>(a, parts, row0, column0);
}

template <uint64_t STEPS, class T, int ROWS, int LANES, int ACROSS, int DEEP, int V>
HT_DEVICE void ht_gemv_kn(const ht_cuda_args& a, float* shared, int row0, int column0) {
    constexpr int GROUPS = 32 / LANES, STEP = DEEP * GROUPS * V, WIDTH = ACROSS * LANES * V, COUNT = ROWS * V;
    const int warp = ht_warp(), lane = threadIdx.x % 32;
    const int across = warp % ACROSS, deep = warp / ACROSS, column = across * LANES * V + lane % LANES * V;
    float sums[COUNT] = {};
    const int steps = (a.k + STEP - 1) / STEP, last = ht_last_step(a, steps);
    const T* w = (const T*)a.w + min(column0 + column, a.n - V);
    for (int step = ht_first_step(a, steps); step < last; step++) {
        const int at = (step * DEEP + deep) * GROUPS * V + lane / LANES * V;
        if (at >= a.k) break;  // of this lane's rows of W none are left
        float rows[ROWS][V];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            ht_load<T, V>(rows[r], (const T*)a.x + (int64_t)min(row0 + r, a.m - 1) * a.ldx + at);
#pragma unroll
        for (int u = 0; u < V; u++) {
            float columns[V];
            ht_load<T, V>(columns, w + (int64_t)(at + u) * a.n);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < V; i++) sums[r * V + i] += rows[r][u] * columns[i];
        }
    }
    ht_sum_lanes<COUNT, LANES>(sums, lane);
    float (*parts)[ROWS][WIDTH] = (float (*)[ROWS][WIDTH])shared;
    if (COUNT >= GROUPS || lane / LANES % (GROUPS / (COUNT < GROUPS ? COUNT : GROUPS)) == 0) {
#pragma unroll
        for (int i = 0; i < (COUNT + GROUPS - 1) / GROUPS; i++) {
            const int sum = lane / LANES * COUNT / GROUPS + i;
            parts[deep][sum / V][column + sum % V] = sums[i];
        }
    }
    ht_gemv_store<STEPS, T, ROWS, WIDTH, DEEP, ACROSS * DEEP * 32>(a, parts, row0, column0);
}
