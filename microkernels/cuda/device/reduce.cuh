// Adds up the partial sums of a k split in the order of the shares, whatever the grid, and writes Y.
template <class T>
HT_DEVICE void ht_reduce(const ht_cuda_args& a) {
    constexpr int N = ht_wide<T>::elements;
    const int64_t across = (a.n + N - 1) / N, pieces = across * a.m;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < pieces; at += (int64_t)gridDim.x * blockDim.x) {
        const int row = (int)(at / across), column = (int)(at % across) * N;
        const bool wide = a.n % 4 == 0 && column + N <= a.n;
        const float* from = a.partial + (int64_t)row * a.n + column;
        float v[N] = {};
#pragma unroll 4
        for (int s = 0; s < a.splits; s++, from += (int64_t)a.m * a.n) {
            float share[N];
            if (wide) {
#pragma unroll
                for (int i = 0; i < N; i += 4) ht_wide<float>::load(share + i, from + i);
            } else {
#pragma unroll
                for (int i = 0; i < N; i++) share[i] = column + i < a.n ? from[i] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += share[i];
        }
        ht_put<T>(a, v, row, column, false);
    }
}
