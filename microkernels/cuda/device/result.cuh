// What becomes of a tile's sums: the steps of an epilogue and rounding into Y, or fp32 partial sums of a share of k.
// Whole 16-byte pieces where Y's pointer and stride (and bias and residual, if any) are so aligned, else single elements.
// STEPS: 0 of a kernel that adds a bias and a residual, where they are, and writes Y of its own type; 1 of one that is built for any
// steps and any type of Y, and asks for them element by element; else the very steps (ht_cuda_args.after) that it is built for.
// Code that asks costs instructions of the main loop: ptxas keeps fewer addresses in registers.

// The number of what a kernel writes unless a launch is told another, and what it reads with one value a channel.
template <class T>
struct ht_own {
    enum { number = HT_Y_FP32 };
    typedef T channel;
};
template <>
struct ht_own<ht_half> {
    enum { number = HT_Y_FP16 };
    typedef ht_half channel;
};
template <>
struct ht_own<ht_bf16> {
    enum { number = HT_Y_BF16 };
    typedef ht_bf16 channel;
};

// An address so many elements further on.
HT_DEVICE const void* ht_moved(const void* from, int64_t elements, int bytes) {
    return from ? (const char*)from + elements * bytes : from;
}
template <class T>
HT_DEVICE int ht_y_bytes(const ht_cuda_args& a) {
    const int type = a.y_type == HT_Y_OWN ? (int)ht_own<T>::number : a.y_type;
    return type == HT_Y_FP32 || type == HT_Y_INT32 ? 4 : type >= HT_Y_UINT8 ? 1 : 2;
}
// What is added to whole numbers are floats.
template <class T>
HT_DEVICE int ht_residual_bytes(const ht_cuda_args& a) {
    const int type = a.y_type == HT_Y_OWN ? (int)ht_own<T>::number : a.y_type;
    return type == HT_Y_FP16 || type == HT_Y_BF16 ? 2 : 4;
}
// What a channel has one value of, so many elements further on.
template <class T>
HT_DEVICE void ht_move_channels(ht_cuda_args& a, int64_t elements) {
    constexpr int bytes = sizeof(typename ht_own<T>::channel);
    a.bias = ht_moved(a.bias, elements, bytes);
    a.scale = ht_moved(a.scale, elements, bytes);
    a.low = ht_moved(a.low, elements, bytes);
    a.high = ht_moved(a.high, elements, bytes);
    a.slope = ht_moved(a.slope, elements, bytes);
}

template <class T>
HT_DEVICE bool ht_aligned(const ht_cuda_args& a) {
    const uint64_t results = (uint64_t)a.y | (uint64_t)a.residual, channels = (uint64_t)a.bias | (uint64_t)a.scale | (uint64_t)a.slope;
    return (results | channels | (uint64_t)a.low | (uint64_t)a.high) % 16 == 0 && a.ldy % ht_wide<T>::elements == 0;
}

// Nothing but whole pieces in Y, all of k summed here.
template <class T>
HT_DEVICE bool ht_whole(const ht_cuda_args& a) {
    return a.splits == 1 && a.n % ht_wide<T>::elements == 0 && ht_aligned<T>(a);
}

// What a kind of kernel is given beside its arguments (batches.cuh); here nothing.
struct ht_nothing {
    template <class T, int N>
    HT_DEVICE void begin(float*, int, int) const {}
    HT_DEVICE int64_t place(const ht_cuda_args& a, int row, int column) const { return (int64_t)row * a.ldy + column; }
    HT_DEVICE bool rows() const { return false; }
    HT_DEVICE bool idle() const { return true; }
};
template <class T>
HT_DEVICE ht_nothing ht_beside(const ht_cuda_args&) { return ht_nothing(); }

// N elements side by side, at an address that is a multiple of 16 bytes or of all of them.
template <class U, int N>
HT_DEVICE void ht_load_some(float* to, const U* from) {
    if constexpr (N == 1) {
        *to = (float)*from;
    } else if constexpr (N == 2 && sizeof(U) == 4) {
        const float2 raw = *(const float2*)from;
        to[0] = raw.x, to[1] = raw.y;
    } else if constexpr (N == 2) {
        const uint32_t raw = *(const uint32_t*)from;
        U low, high;
        low.bits = (uint16_t)raw, high.bits = (uint16_t)(raw >> 16);
        to[0] = low, to[1] = high;
    } else if constexpr (N >= ht_wide<U>::elements) {
#pragma unroll
        for (int i = 0; i < N; i += ht_wide<U>::elements) ht_wide<U>::load(to + i, from + i);
    } else {
        const uint2 raw = *(const uint2*)from;
        const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
        for (int i = 0; i < N; i++) {
            U one;
            one.bits = (uint16_t)(words[i / 2] >> i % 2 * 16);
            to[i] = one;
        }
    }
}
template <class U, int N>
HT_DEVICE void ht_store_some(U* to, const float* from) {
    if constexpr (N == 1) {
        *to = (U)*from;
    } else if constexpr (N >= ht_wide<U>::elements) {
#pragma unroll
        for (int i = 0; i < N; i += ht_wide<U>::elements) ht_wide<U>::store(to + i, from + i);
    } else {
        const uint2 raw = {ht_pair(U(), from[0], from[1]), ht_pair(U(), from[2], from[3])};
        *(uint2*)to = raw;
    }
}
template <class T, int N>
HT_DEVICE void ht_load_y(const ht_cuda_args& a, float* to, const void* y, int64_t at) {
    constexpr int own = ht_own<T>::number;
    if (own != HT_Y_FP32 && a.y_type == HT_Y_FP32) ht_load_some<float, N>(to, (const float*)y + at);
    else if (own != HT_Y_FP16 && a.y_type == HT_Y_FP16) ht_load_some<ht_half, N>(to, (const ht_half*)y + at);
    else if (own != HT_Y_BF16 && a.y_type == HT_Y_BF16) ht_load_some<ht_bf16, N>(to, (const ht_bf16*)y + at);
    else if constexpr (own == HT_Y_INT32) ht_load_some<float, N>(to, (const float*)y + at);
    else ht_load_some<T, N>(to, (const T*)y + at);
}
template <class T, int N>
HT_DEVICE void ht_store_y(const ht_cuda_args& a, const float* from, int64_t at) {
    constexpr int own = ht_own<T>::number;
    if (own != HT_Y_FP32 && a.y_type == HT_Y_FP32) ht_store_some<float, N>((float*)a.y + at, from);
    else if (own != HT_Y_FP16 && a.y_type == HT_Y_FP16) ht_store_some<ht_half, N>((ht_half*)a.y + at, from);
    else if (own != HT_Y_BF16 && a.y_type == HT_Y_BF16) ht_store_some<ht_bf16, N>((ht_bf16*)a.y + at, from);
    else if constexpr (own == HT_Y_INT32) ht_own<T>::template store<N>(a, from, at);
    else ht_store_some<T, N>((T*)a.y + at, from);
}
// Of N neighbours of a row: their own values of a channel, or the row's.
template <class T, int N, class BESIDE>
HT_DEVICE void ht_load_channel(float* to, const void* from, int row, int column, const BESIDE& beside) {
    typedef typename ht_own<T>::channel C;
    if (beside.rows()) {
        const float one = ((const C*)from)[row];
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = one;
    } else {
        ht_load_some<C, N>(to, (const C*)from + column);
    }
}

// Where a step reads what it reads of one channel, or of the result's place.
HT_DEVICE const void* ht_read_by(const ht_cuda_args& a, int step) {
    return step == HT_STEP_BIAS ? a.bias : step == HT_STEP_SCALE ? a.scale : step == HT_STEP_CLAMP ? a.low : step == HT_STEP_PRELU ? a.slope : a.residual;
}
// A step on a value and what it reads; of a clamp its lower end alone.
HT_DEVICE float ht_joined(int step, float v, float other) {
    if (step == HT_STEP_PRELU) return (v < 0 ? 0 : v) + (v > 0 ? 0 : v) * other;
    return step == HT_STEP_SCALE ? v * other : step == HT_STEP_CLAMP ? (v < other ? other : v) : v + other;
}

// The steps that a kernel is built for: the lowest four bits are the next one. SHORT: the last one is rounded to 16 bits. ADDED: what
// is added, a pair of T that was loaded before.
template <uint64_t STEPS, class T, int N, bool SHORT, class BESIDE>
HT_DEVICE void ht_built_steps(const ht_cuda_args& a, float* v, int row, int column, int64_t at, const BESIDE& beside, const uint32_t* added) {
    constexpr int step = (int)(STEPS & 15);
    if constexpr (step == HT_STEP_BIAS || step == HT_STEP_SCALE || step == HT_STEP_RESIDUAL || step == HT_STEP_PRELU) {
        const void* const from = ht_read_by(a, step);
        if (from) {
            float other[N];
            if constexpr (step == HT_STEP_RESIDUAL && SHORT) ht_load_some<T, N>(other, (const T*)added);
            else if constexpr (step == HT_STEP_RESIDUAL) ht_load_y<T, N>(a, other, from, at);
            else ht_load_channel<T, N>(other, from, row, column, beside);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = ht_joined(step, v[i], other[i]);
        }
    } else if constexpr (step == HT_STEP_CLAMP) {
        if (a.low) {
            float low[N], high[N];
            ht_load_channel<T, N>(low, a.low, row, column, beside);
            ht_load_channel<T, N>(high, a.high, row, column, beside);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = v[i] < low[i] ? low[i] : v[i], v[i] = v[i] > high[i] ? high[i] : v[i];
        }
    } else if constexpr (SHORT && (STEPS >> 4) == 0) {
        ht_activate_short<N>(step, v);
    } else {
        ht_activate<N>(step, v);
    }
    if constexpr ((STEPS >> 4) != 0) ht_built_steps<(STEPS >> 4), T, N, SHORT>(a, v, row, column, at, beside, added);
}

// Whether a step is among those that a kernel is built for.
template <uint64_t STEPS>
struct ht_among {
    static HT_DEVICE constexpr bool of(int step) { return (int)(STEPS & 15) == step || ht_among<(STEPS >> 4)>::of(step); }
};
template <>
struct ht_among<0> {
    static HT_DEVICE constexpr bool of(int) { return false; }
};

// All steps that a kernel is built for; a bias that is none of them is what a call of products brings, and comes first.
template <uint64_t STEPS, class T, int N, bool SHORT = false, class BESIDE>
HT_DEVICE void ht_built(const ht_cuda_args& a, float* v, int row, int column, int64_t at, const BESIDE& beside, const uint32_t* added = 0) {
    if constexpr (!ht_among<STEPS>::of(HT_STEP_BIAS)) ht_built_steps<HT_STEP_BIAS, T, N, false>(a, v, row, column, at, beside, added);
    ht_built_steps<STEPS, T, N, SHORT>(a, v, row, column, at, beside, added);
}

// The steps in their order; without any a bias and a residual, where they are.
template <class T, int N, class BESIDE>
HT_DEVICE void ht_put_after(const ht_cuda_args& a, float* v, int row, int column, int64_t at, const BESIDE& beside) {
#pragma unroll 1
    for (int place = 0; place < 64; place += 4) {
        const int step = (int)((a.after ? a.after : HT_STEP_BIAS | HT_STEP_RESIDUAL << 4) >> place & 15);
        if (step == 0) break;
        if (step != HT_STEP_BIAS && step != HT_STEP_RESIDUAL && step != HT_STEP_SCALE && step != HT_STEP_CLAMP && step != HT_STEP_PRELU) {
            ht_activate<N>(step, v);
            continue;
        }
        const void* from = ht_read_by(a, step);
        if (!from) continue;
        float other[N];
        if (step == HT_STEP_RESIDUAL) ht_load_y<T, N>(a, other, from, at);
        else ht_load_channel<T, N>(other, from, row, column, beside);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = ht_joined(step, v[i], other[i]);
        if (step != HT_STEP_CLAMP) continue;
        ht_load_channel<T, N>(other, a.high, row, column, beside);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = v[i] > other[i] ? other[i] : v[i];
    }
    ht_store_y<T, N>(a, v, at);
}

// What is only added, and Y of the kernel's own type.
template <class T, int N, class BESIDE>
HT_DEVICE void ht_put_added(const ht_cuda_args& a, float* v, int row, int column, int64_t at, const BESIDE& beside) {
    float other[N];
    if (a.bias) {
        ht_load_channel<T, N>(other, a.bias, row, column, beside);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += other[i];
    }
    if (a.residual) {
        ht_load_some<T, N>(other, (const T*)a.residual + at);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += other[i];
    }
    ht_store_some<T, N>((T*)a.y + at, v);
}

// N neighbours of a row: one, four, or 16 bytes of them. Steps that are asked for want four: more would not fit the registers beside
// the sums, and a warp fills whole sectors all the same.
template <uint64_t STEPS, class T, int N, class BESIDE = ht_nothing>
HT_DEVICE void ht_put_some(const ht_cuda_args& a, float* v, int row, int column, const BESIDE& beside = BESIDE()) {
    if (row >= a.m || column >= a.n) return;
    const int64_t at = beside.place(a, row, column);
    beside.template begin<T, N>(v, row, column);
    if constexpr (STEPS > 1) ht_built<STEPS, T, N>(a, v, row, column, at, beside), ht_store_y<T, N>(a, v, at);
    else if constexpr (STEPS) ht_put_after<T, N>(a, v, row, column, at, beside);
    else ht_put_added<T, N>(a, v, row, column, at, beside);
}

template <uint64_t STEPS, class T, class BESIDE = ht_nothing>
HT_DEVICE void ht_put_one(const ht_cuda_args& a, float v, int row, int column, bool partial, const BESIDE& beside = BESIDE()) {
    if (partial) {
        if (row < a.m && column < a.n) a.partial[((int64_t)blockIdx.y * a.m + row) * a.n + column] = v;
        return;
    }
    ht_put_some<STEPS, T, 1>(a, &v, row, column, beside);
}

// COUNT elements that lie apart, row and column of each, of a kernel without steps. One after the other each would wait for its own
// loads: a load does not pass the store before it.
template <class T, int COUNT, class BESIDE = ht_nothing>
HT_DEVICE void ht_put_apart(const ht_cuda_args& a, float* v, const int* rows, const int* columns, bool partial, const BESIDE& beside = BESIDE()) {
    if (partial) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) ht_put_one<false, T>(a, v[i], rows[i], columns[i], true, beside);
        return;
    }
    bool inside[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        inside[i] = rows[i] < a.m && columns[i] < a.n;
        if (inside[i]) beside.template begin<T, 1>(v + i, rows[i], columns[i]);
    }
    if (a.bias) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float other = 0;
            if (inside[i]) ht_load_channel<T, 1>(&other, a.bias, rows[i], columns[i], beside);
            v[i] += other;
        }
    }
    if (a.residual) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (inside[i]) v[i] += (float)((const T*)a.residual)[beside.place(a, rows[i], columns[i])];
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (inside[i]) ((T*)a.y)[beside.place(a, rows[i], columns[i])] = (T)v[i];
}
