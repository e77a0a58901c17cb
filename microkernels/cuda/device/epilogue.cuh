// What becomes of a tile's sums: bias, residual, activation and rounding into Y, or fp32 partial sums of a share of k.
// Whole 16-byte pieces where Y's pointer and stride (and bias and residual, if any) are so aligned, else single elements.

HT_DEVICE float ht_activated(int act, float v) {
    if (act == HT_ACT_RELU) return v < 0.0f ? 0.0f : v;  // keeps NaN
    if (act == HT_ACT_GELU_ERF) return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    // x * sigmoid(t); GELU's 0.5 x (1 + tanh(t / 2)) is one, too.
    const float t = act == HT_ACT_SILU ? v : 1.5957691f * (v + 0.044715f * v * v * v);
    return __fdividef(v, 1.0f + expf(-t));  // 0 where the divisor is beyond 2^126
}

template <class T>
HT_DEVICE bool ht_aligned(const ht_cuda_args& a) {
    const uint64_t pointers = (uint64_t)a.y | (uint64_t)a.residual | (uint64_t)a.bias;
    return pointers % 16 == 0 && a.ldy % ht_wide<T>::elements == 0;
}

// The common case: one share of k, no activation, nothing but whole pieces in Y.
template <class T>
HT_DEVICE bool ht_plain(const ht_cuda_args& a) {
    return a.splits == 1 && a.act == HT_ACT_NONE && a.n % ht_wide<T>::elements == 0 && ht_aligned<T>(a);
}

template <class T>
HT_DEVICE void ht_put_plain(const ht_cuda_args& a, float* v, int row, int column) {
    constexpr int N = ht_wide<T>::elements;
    if (row >= a.m || column >= a.n) return;
    const int64_t at = (int64_t)row * a.ldy + column;
    float other[N];
    if (a.bias) {
        ht_wide<T>::load(other, (const T*)a.bias + column);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += other[i];
    }
    if (a.residual) {
        ht_wide<T>::load(other, (const T*)a.residual + at);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += other[i];
    }
    ht_wide<T>::store((T*)a.y + at, v);
}

// Every case.
template <class T>
HT_DEVICE void ht_put(const ht_cuda_args& a, float* v, int row, int column, bool partial) {
    constexpr int N = ht_wide<T>::elements;
    if (row >= a.m || column >= a.n) return;
    if (partial) {
        float* to = a.partial + ((int64_t)blockIdx.y * a.m + row) * a.n + column;
        if (a.n % 4 == 0 && column + N <= a.n) {
#pragma unroll
            for (int i = 0; i < N; i += 4) ht_wide<float>::store(to + i, v + i);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (column + i < a.n) to[i] = v[i];
        }
        return;
    }
    const int64_t at = (int64_t)row * a.ldy + column;
    const bool wide = column + N <= a.n && ht_aligned<T>(a);
    float other[N];
    if (a.bias) {
        if (wide) ht_wide<T>::load(other, (const T*)a.bias + column);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (wide || column + i < a.n) v[i] += wide ? other[i] : (float)((const T*)a.bias)[column + i];
    }
    if (a.residual) {
        if (wide) ht_wide<T>::load(other, (const T*)a.residual + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (wide || column + i < a.n) v[i] += wide ? other[i] : (float)((const T*)a.residual)[at + i];
    }
    if (a.act != HT_ACT_NONE) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = ht_activated(a.act, v[i]);
    }
    if (wide) {
        ht_wide<T>::store((T*)a.y + at, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (column + i < a.n) ((T*)a.y)[at + i] = (T)v[i];
    }
}

// ---- accumulators of mma.m16n8 and wgmma: FRAGMENTS of 16 rows, ROW_STEP apart, by COLUMNS, all of one warp
// Eight rows at a time go through the warp's own shared memory (8 * ht_pitch<COLUMNS>::floats floats). The pitch makes the four rows
// that half a warp stores at once meet different banks; readers of 32 bytes take the halves in turns.
template <int COLUMNS>
struct ht_pitch {
    enum { floats = COLUMNS % 16 == 8 ? COLUMNS : COLUMNS + 8 };
};

template <int COLUMNS>
HT_DEVICE void ht_stage(float* stage, const float* sums) {
    const int lane = threadIdx.x % 32;
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

template <class T, int FRAGMENTS, int COLUMNS, int ROW_STEP>
HT_DEVICE void ht_store_fragments(const ht_cuda_args& a, const float* sums, void* shared, int warp, int row0, int column0) {
    constexpr int N = ht_wide<T>::elements, PIECES = 8 * COLUMNS / N;  // of eight rows
    float* stage = (float*)shared + warp * 8 * ht_pitch<COLUMNS>::floats;
    const int lane = threadIdx.x % 32;
    if (ht_plain<T>(a)) {
#pragma unroll
        for (int half = 0; half < 2 * FRAGMENTS; half++) {
            __syncwarp();
            ht_stage<COLUMNS>(stage, sums + half / 2 * COLUMNS / 2 + half % 2 * 2);
            __syncwarp();
#pragma unroll
            for (int first = 0; first < PIECES; first += 32) {
                const int piece = first + lane, r = piece / (COLUMNS / N), c = piece % (COLUMNS / N) * N;
                if (PIECES % 32 && piece >= PIECES) continue;
                float v[N];
                ht_unstage<N>(v, stage + r * ht_pitch<COLUMNS>::floats + c, lane & 4);
                ht_put_plain<T>(a, v, row0 + half / 2 * ROW_STEP + half % 2 * 8 + r, column0 + c);
            }
        }
        return;
    }
    const bool partial = a.splits > 1;
#pragma unroll 1
    for (int half = 0; half < 2 * FRAGMENTS; half++) {
        __syncwarp();
#pragma unroll
        for (int same = 0; same < 2 * FRAGMENTS; same++)
            if (same == half) ht_stage<COLUMNS>(stage, sums + same / 2 * COLUMNS / 2 + same % 2 * 2);
        __syncwarp();
#pragma unroll 1
        for (int piece = lane; piece < PIECES; piece += 32) {
            const int r = piece / (COLUMNS / N), c = piece % (COLUMNS / N) * N;
            float v[N];
            ht_unstage<N>(v, stage + r * ht_pitch<COLUMNS>::floats + c, lane & 4);
            ht_put<T>(a, v, row0 + half / 2 * ROW_STEP + half % 2 * 8 + r, column0 + c, partial);
        }
    }
}

// ---- fp32 sums of one thread: ROWS x COLUMNS, both in strips that lie ROW_STEP and COLUMN_STEP apart; four columns a strip
// Eight neighbours of a warp hold 128 bytes of a row of Y: stores are whole as they are.
template <int ROWS, int COLUMNS, int ROW_STRIP, int ROW_STEP, int COLUMN_STEP>
HT_DEVICE void ht_store_strips(const ht_cuda_args& a, const float* sums, int row0, int column0) {
    if (ht_plain<float>(a)) {
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
            const int r = i / (COLUMNS / 4), s = i % (COLUMNS / 4);
            float v[4] = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
            ht_put_plain<float>(a, v, row0 + r / ROW_STRIP * ROW_STEP + r % ROW_STRIP, column0 + s * COLUMN_STEP);
        }
        return;
    }
    const bool partial = a.splits > 1;
#pragma unroll 1
    for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
        const int r = i / (COLUMNS / 4), s = i % (COLUMNS / 4);
        float v[4];
#pragma unroll
        for (int same = 0; same < ROWS * COLUMNS / 4; same++)
#pragma unroll
            for (int q = 0; q < 4; q++) v[q] = same == i ? sums[same * 4 + q] : v[q];
        ht_put<float>(a, v, row0 + r / ROW_STRIP * ROW_STEP + r % ROW_STRIP, column0 + s * COLUMN_STEP, partial);
    }
}
