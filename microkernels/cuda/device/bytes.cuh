// Kernels of bytes: words of four, int32 sums, and what becomes of them. A result is the sums as they are, or what the steps make of
// them in fp32, of any type: whole numbers are rounded to the nearest, ties to even, and stay within their range.

struct ht_byte {  // of X or W, with or without a sign
    uint8_t bits;
};
HT_DEVICE int ht_rounded(float value) {  // the nearest of all int32; 0 of NaN
    int whole;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(whole) : "f"(value));
    return whole;
}
HT_DEVICE uint8_t ht_low_byte(float value, float least, float most) {
    return (uint8_t)ht_rounded(value < least ? least : value > most ? most : value);
}

template <>
struct ht_own<ht_byte> {
    enum { number = HT_Y_INT32 };
    typedef float channel;

    template <int N>
    static HT_DEVICE void store(const ht_cuda_args& a, const float* from, int64_t at) {
        if (a.y_type == HT_Y_OWN) {
            int whole[N];
#pragma unroll
            for (int i = 0; i < N; i++) whole[i] = ht_rounded(from[i]);
            put<N>((int*)a.y + at, whole);
            return;
        }
        const bool sign = a.y_type == HT_Y_INT8;
        uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < N; i++) word |= (uint32_t)ht_low_byte(from[i], sign ? -128.0f : 0.0f, sign ? 127.0f : 255.0f) << 8 * i;
        if constexpr (N == 4) *(uint32_t*)((uint8_t*)a.y + at) = word;
        else *((uint8_t*)a.y + at) = (uint8_t)word;
    }
    template <int N>
    static HT_DEVICE void put(int* to, const int* v) {
        if constexpr (N == 4) *(int4*)to = int4{v[0], v[1], v[2], v[3]};
        else *to = v[0];
    }
};

// ---- products
// Four bytes of x by four of w, with signs (s) or without (u), added to a sum.
HT_DEVICE int ht_dot_us(int x, int w, int sum) {
    int found;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(found) : "r"(x), "r"(w), "r"(sum));
    return found;
}
HT_DEVICE int ht_dot_ss(int x, int w, int sum) {
    int found;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(found) : "r"(x), "r"(w), "r"(sum));
    return found;
}
HT_DEVICE int ht_dot_su(int x, int w, int sum) { return ht_dot_us(w, x, sum); }
// A word of bytes that lie so far apart, as many as there are, then zeros.
HT_DEVICE void ht_gather(int* word, const uint8_t* from, int apart, int there) {
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < there) found |= (uint32_t)from[i * apart] << 8 * i;
    *word = (int)found;
}

// ---- sums to Y
// Nothing but whole pieces of four results: what is read beside them are floats.
HT_DEVICE bool ht_whole_sums(const ht_cuda_args& a) { return a.splits == 1 && a.n % 4 == 0 && ht_aligned<float>(a); }

template <uint64_t STEPS, int N, class BESIDE = ht_nothing>
HT_DEVICE void ht_put_sums(const ht_cuda_args& a, const int* v, int row, int column, bool partial, const BESIDE& beside = BESIDE()) {
    if (row >= a.m || column >= a.n) return;
    if (partial) {
#pragma unroll
        for (int i = 0; i < N; i++) ((int*)a.partial)[((int64_t)blockIdx.y * a.m + row) * a.n + column + i] = v[i];
        return;
    }
    const int64_t at = beside.place(a, row, column);
    if (a.after == 0 && a.y_type == HT_Y_OWN && !a.bias && !a.residual && beside.idle()) {
        ht_own<ht_byte>::put<N>((int*)a.y + at, v);
        return;
    }
    float sums[N];
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = (float)v[i];
    beside.template begin<float, N>(sums, row, column);
    if constexpr (STEPS > 1) {
        ht_built<STEPS, ht_byte, N>(a, sums, row, column, at, beside);
        ht_store_y<ht_byte, N>(a, sums, at);
    } else if constexpr (STEPS) {
        ht_put_after<ht_byte, N>(a, sums, row, column, at, beside);
    } else {  // what a call of products side by side brings
        float bias[N] = {};
        if (a.bias) ht_load_channel<ht_byte, N>(bias, a.bias, row, column, beside);
        int whole[N];
#pragma unroll
        for (int i = 0; i < N; i++) whole[i] = ht_rounded(sums[i] + bias[i]);
        ht_own<ht_byte>::put<N>((int*)a.y + at, whole);
    }
}

// Accumulators of mma.m16n8: FRAGMENTS of 16 rows, ROW_STEP apart, by COLUMNS, all of one warp; eight rows at a time through its own
// shared memory, as in ht_store_fragments.
template <uint64_t STEPS, int FRAGMENTS, int COLUMNS, int ROW_STEP, class ARGS>
HT_DEVICE void ht_store_byte_fragments(const ARGS& a, const uint32_t* sums, void* shared, int warp, int row0, int column0) {
    const auto beside = ht_beside<float>(a);
    constexpr int PITCH = ht_pitch<COLUMNS>::floats;
    const int lane = ht_thread_again() % 32;
    int* stage = (int*)shared + warp * 8 * PITCH;
    const bool whole = ht_whole_sums(a), partial = a.splits > 1;
#pragma unroll 1
    for (int half = 0; half < 2 * FRAGMENTS; half++) {
        const int row = row0 + half / 2 * ROW_STEP + half % 2 * 8;
        __syncwarp();
#pragma unroll
        for (int same = 0; same < 2 * FRAGMENTS; same++) {
            if (same != half) continue;
            const uint32_t* from = sums + same / 2 * COLUMNS / 2 + same % 2 * 2;
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
                *(int2*)(stage + lane / 4 * PITCH + j * 8 + lane % 4 * 2) = int2{(int)from[j * 4], (int)from[j * 4 + 1]};
        }
        __syncwarp();
        if (whole) {
#pragma unroll 1
            for (int piece = lane; piece < 2 * COLUMNS; piece += 32) {
                const int r = piece / (COLUMNS / 4), c = piece % (COLUMNS / 4) * 4;
                const int4 raw = *(const int4*)(stage + r * PITCH + c);
                const int v[4] = {raw.x, raw.y, raw.z, raw.w};
                ht_put_sums<STEPS, 4>(a, v, row + r, column0 + c, false, beside);
            }
        } else {
#pragma unroll 1
            for (int one = lane; one < 8 * COLUMNS; one += 32)
                ht_put_sums<STEPS, 1>(a, stage + one / COLUMNS * PITCH + one % COLUMNS, row + one / COLUMNS, column0 + one % COLUMNS, partial, beside);
        }
    }
}

// Sums of one thread, as in ht_store_strips.
template <uint64_t STEPS, int ROWS, int COLUMNS, int ROW_STRIP, int ROW_STEP, int COLUMN_STEP, class ARGS>
HT_DEVICE void ht_store_byte_strips(const ARGS& a, const int* sums, int row0, int column0) {
    const auto beside = ht_beside<float>(a);
    const bool whole = ht_whole_sums(a), partial = a.splits > 1;
#pragma unroll 1
    for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
        const int r = i / (COLUMNS / 4), s = i % (COLUMNS / 4);
        const int row = row0 + r / ROW_STRIP * ROW_STEP + r % ROW_STRIP, column = column0 + s * COLUMN_STEP;
        int v[4];
#pragma unroll
        for (int same = 0; same < ROWS * COLUMNS / 4; same++)
#pragma unroll
            for (int q = 0; q < 4; q++) v[q] = same == i ? sums[same * 4 + q] : v[q];
        if (whole) {
            ht_put_sums<STEPS, 4>(a, v, row, column, false, beside);
        } else {
#pragma unroll 1
            for (int q = 0; q < 4; q++) {
                ht_put_sums<STEPS, 1>(a, v, row, column + q, partial, beside);
                v[0] = v[1], v[1] = v[2], v[2] = v[3];
            }
        }
    }
}

// Of a transposed convolution, the sum of its taps.
template <class T, class BESIDE>
HT_DEVICE void ht_put_gathered(const ht_cuda_args& a, int sum, int feature, int64_t at, const BESIDE& beside) {
    if (a.after == 0 && a.y_type == HT_Y_OWN && !a.bias && !a.residual) {
        ht_own<T>::template put<1>((int*)a.y + at, &sum);
        return;
    }
    float one = (float)sum;
    ht_put_after<T, 1>(a, &one, feature, 0, at, beside);
}

// Adds up the partial sums of a k split.
HT_DEVICE void ht_reduce_bytes(ht_cuda_args a) {
    const int* from = (const int*)a.partial;
    const int64_t results = (int64_t)a.m * a.n, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < results; at += step) {
        int sum = 0;
        for (int s = 0; s < a.splits; s++) sum += from[s * results + at];
        ht_put_sums<true, 1>(a, &sum, (int)(at / a.n), (int)(at % a.n), false);
    }
}
