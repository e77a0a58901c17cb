// Matrices side by side: a block's own, by the third axis of the grid. Strides are 64-bit: a batch may hold any number of elements.

struct ht_batch_args : ht_cuda_args {
    const ht_cuda_batch& batch;
    HT_DEVICE ht_batch_args(const ht_cuda_args& all, const ht_cuda_batch& of) : ht_cuda_args(all), batch(of) {}
};

template <class T>
HT_DEVICE void ht_enter_matrix(ht_batch_args& a) {
    const ht_cuda_batch& batch = a.batch;
    int left = batch.first + (int)blockIdx.z;
    int64_t x = 0, w = 0, y = 0, channel = 0;
#pragma unroll
    for (int axis = HT_CUDA_BATCH_AXES - 1; axis >= 0; axis--) {
        if (batch.extents[axis] == 1) continue;  // a division is dear
        const int at = left % batch.extents[axis];
        left /= batch.extents[axis];
        x += at * batch.x[axis], w += at * batch.w[axis], y += at * batch.y[axis];
        channel += at * batch.channel_apart[axis];
    }
    a.x = (const T*)a.x + x;
    a.w = (const T*)a.w + w;
    a.y = (char*)a.y + y * ht_y_bytes<T>(a);
    a.residual = ht_moved(a.residual, y, ht_residual_bytes<T>(a));
    ht_move_channels<T>(a, channel);
}

// (x . w) * scale + mask, ahead of the steps. Which matrix it is is found again behind the sums: nothing of it lives through the
// main loop.
template <class MASK>
struct ht_beside_matrix {
    float factor;
    const MASK* mask;
    int64_t down, right;
    bool wide;  // 16 bytes of a row of the mask lie as they are loaded
    bool channel_rows;

    HT_DEVICE bool rows() const { return channel_rows; }
    HT_DEVICE int64_t place(const ht_cuda_args& a, int row, int column) const { return (int64_t)row * a.ldy + column; }
    HT_DEVICE bool idle() const { return factor == 1.0f && !mask; }
    template <class T, int N>
    HT_DEVICE void begin(float* v, int row, int column) const {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] *= factor;
        if (!mask) return;
        const T* from = mask + row * down + column * right;
        if constexpr (N > 1) {
            if (wide) {
                float other[N];
                ht_load_some<T, N>(other, from);
#pragma unroll
                for (int i = 0; i < N; i++) v[i] += other[i];
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += (float)from[i * right];
    }
};

template <class T>
HT_DEVICE ht_beside_matrix<T> ht_beside(const ht_batch_args& a) {
    const ht_cuda_batch& batch = a.batch;
    int64_t scale = 0, mask = 0;
    if (batch.scale || batch.mask) {
        int left = batch.first + (int)blockIdx.z;
#pragma unroll
        for (int axis = HT_CUDA_BATCH_AXES - 1; axis >= 0; axis--) {
            const int at = left % batch.extents[axis];
            left /= batch.extents[axis];
            scale += at * batch.scale_apart[axis], mask += at * batch.mask_apart[axis];
        }
    }
    ht_beside_matrix<T> found = {batch.factor, nullptr, batch.mask_down, batch.mask_right, false,
                                 batch.channel_rows != 0};
    if (batch.scale) found.factor = batch.scale[scale];
    if (batch.mask) {
        found.mask = (const T*)batch.mask + mask;
        found.wide = batch.mask_right == 1 && (uint64_t)found.mask % 16 == 0 && batch.mask_down % ht_wide<T>::elements == 0;
    }
    return found;
}
