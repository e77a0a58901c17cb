// Adds up the partial sums of a k split in the order of the shares, whatever the grid, and writes Y.
template <class T, int N>
HT_DEVICE void ht_reduce_at(const ht_cuda_args& a, int row, int column) {
    const float* from = a.partial + (int64_t)row * a.n + column;
    float v[N] = {};
#pragma unroll 4
    for (int s = 0; s < a.splits; s++, from += (int64_t)a.m * a.n) {
        if (N == 1) {
            v[0] += from[0];
        } else {
            float share[4];
            ht_wide<float>::load(share, from);
#pragma unroll
            for (int q = 0; q < 4; q++) v[q % N] += share[q];
        }
    }
    if (N == 1) {
        ht_put_one<true, T>(a, v[0], row, column, false);
    } else {
        ht_put_some<true, T, N>(a, v, row, column);
    }
}

template <class T>
HT_DEVICE void ht_reduce(const ht_cuda_args& a) {
    constexpr int N = 4;
    const bool whole = a.n % ht_wide<T>::elements == 0 && ht_aligned<T>(a);
    const int64_t across = whole ? a.n / N : a.n, pieces = across * a.m, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < pieces; at += step) {
        const int row = (int)(at / across), column = (int)(at % across);
        if (whole)
            ht_reduce_at<T, N>(a, row, column * N);
        else
            ht_reduce_at<T, 1>(a, row, column);
    }
}
