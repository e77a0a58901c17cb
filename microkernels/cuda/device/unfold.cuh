// What the windows of a convolution see, a row a pixel, whatever the grid. T: unsigned, as wide as an element.
template <class T>
HT_DEVICE void ht_unfold(const ht_cuda_unfold& a) {
    const int taps = a.r * a.s, depth = a.channels * taps;
    const int64_t all = a.pixels * depth * a.groups, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        const int term = (int)(at % depth), tap = term % taps;
        const int64_t row = at / depth, pixel = row % a.pixels, line = pixel / a.q;
        const int64_t y = line % a.p * a.down - a.above + tap / a.s * a.dilation_down;
        const int64_t x = pixel % a.q * a.right - a.before + tap % a.s * a.dilation_right;
        const int64_t channel = row / a.pixels * a.channels + term / taps;
        const bool inside = y >= 0 && y < a.h && x >= 0 && x < a.w;
        const int64_t from = line / a.p * a.xb + channel * a.xc + y * a.xh + x * a.xw;
        ((T*)a.columns)[at] = inside ? ((const T*)a.x)[from] : (T)0;
    }
}
