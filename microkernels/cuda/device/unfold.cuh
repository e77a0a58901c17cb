// What the windows of a convolution see, a row a pixel, whatever the grid. A thread stays with a pixel and stores `stored` terms of
// its row at a time: 16 bytes, or one element. `1 << lanes` threads side by side take what follows in the row; the others take the
// pixels that follow, whose elements lie side by side where channels do not. Divisions come ahead of the loops; within them a
// place (channel, tap down, tap right) is counted up. Places are unsigned, and wrap: those outside the image are never inside.
template <class T, int N>
HT_DEVICE void ht_store_terms(T* to, const T* v) {
    if constexpr (N == 1) {
        *to = v[0];
    } else {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = 0;
#pragma unroll
            for (int e = 0; e < N / 4; e++) words[i] |= (uint32_t)v[i * (N / 4) + e] << e * (128 / N);
        }
        *(uint4*)to = {words[0], words[1], words[2], words[3]};
    }
}

template <class T, int N>
HT_DEVICE void ht_unfold_terms(const ht_cuda_unfold& a) {
    const uint32_t rows = a.r, columns = a.s, taps = rows * columns, depth = a.channels * taps;
    const uint32_t step = (gridDim.y << a.lanes) * N, begin = (blockIdx.y << a.lanes | (threadIdx.x & ((1u << a.lanes) - 1))) * N;
    const uint32_t more_channels = step / taps, more_rows = step % taps / columns, more_columns = step % columns;
    const uint32_t first_channel = begin / taps, first_row = begin % taps / columns, first_column = begin % columns;
    const int64_t down = a.dilation_down * a.xh, right = a.dilation_right * a.xw, apart = (int64_t)gridDim.x * (blockDim.x >> a.lanes);
    const int64_t next_row = down - columns * right, next_channel = a.xc - rows * down;
    for (int64_t at = (int64_t)blockIdx.x * (blockDim.x >> a.lanes) + (threadIdx.x >> a.lanes); at < a.pixels; at += apart) {
        const uint32_t pixel = (uint32_t)at, line = pixel / a.q, image = line / a.p;
        const int64_t top = (int64_t)(line - image * a.p) * a.down - a.above, left = (int64_t)(pixel - line * a.q) * a.right - a.before;
        for (int group = blockIdx.z; group < a.groups; group += gridDim.z) {
            const T* corner = (const T*)a.x + (image * a.xb + (int64_t)group * a.channels * a.xc + top * a.xh + left * a.xw);
            T* row = (T*)a.columns + (group * a.pixels + at) * depth;
            uint32_t channel = first_channel, tap_row = first_row, tap = first_column;
            for (uint32_t term = begin; term < depth; term += step) {
                const T* from = corner + (channel * a.xc + tap_row * down + tap * right);
                uint32_t i = tap_row, j = tap;
                T v[N];
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const uint32_t y = (uint32_t)top + i * a.dilation_down, x = (uint32_t)left + j * a.dilation_right;
                    v[e] = y < (uint32_t)a.h && x < (uint32_t)a.w ? *from : (T)0;
                    from += right;
                    if (++j == columns) {
                        j = 0, from += next_row;
                        if (++i == rows) i = 0, from += next_channel;
                    }
                }
                ht_store_terms<T, N>(row + term, v);
                tap += more_columns, tap_row += more_rows, channel += more_channels;
                if (tap >= columns) tap -= columns, ++tap_row;
                if (tap_row >= rows) tap_row -= rows, ++channel;
            }
        }
    }
}

template <class T>
HT_DEVICE void ht_unfold(const ht_cuda_unfold& a) {
    if (a.stored > 1) ht_unfold_terms<T, 16 / sizeof(T)>(a);
    else ht_unfold_terms<T, 1>(a);
}
