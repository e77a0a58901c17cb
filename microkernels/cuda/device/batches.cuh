// Matrices side by side: a block's own, by the third axis of the grid. Strides are 64-bit: a batch may hold any number of elements.

template <class T>
HT_DEVICE void ht_enter_matrix(ht_cuda_args& a, const ht_cuda_batch& batch) {
    int left = batch.first + (int)blockIdx.z;
    int64_t x = 0, w = 0, y = 0;
#pragma unroll
    for (int axis = HT_CUDA_BATCH_AXES - 1; axis >= 0; axis--) {
        const int at = left % batch.extents[axis];
        left /= batch.extents[axis];
        x += at * batch.x[axis], w += at * batch.w[axis], y += at * batch.y[axis];
    }
    a.x = (const T*)a.x + x;
    a.w = (const T*)a.w + w;
    a.y = (T*)a.y + y;
}
