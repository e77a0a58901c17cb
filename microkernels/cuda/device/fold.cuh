// A transposed convolution's result from what each pixel of x gives each tap: every element of Y gathers the taps that reach it,
// in their order, whatever the grid, as floats or, of bytes, as int32. Neighbouring threads have neighbours of Y: pixels of a row, or features where they come last.
struct ht_beside_features {
    HT_DEVICE bool rows() const { return true; }
};

template <class T, class BESIDE>
HT_DEVICE void ht_put_gathered(const ht_cuda_args& a, float sum, int feature, int64_t at, const BESIDE& beside) {
    ht_put_after<T, 1>(a, &sum, feature, 0, at, beside);
}

template <class T, class SUM>
HT_DEVICE void ht_fold_one(const ht_cuda_args& a, const ht_cuda_fold& f, int image, int feature, int row, int column) {
    const SUM* line = (const SUM*)f.columns + image * f.image + (int64_t)feature * f.r * f.s * f.line;
    SUM sum = 0;
    for (int i = 0; i < f.r; i++) {
        const int top = row + f.above - i * f.dilation_down;
        if (top < 0 || top % f.down != 0 || top / f.down >= f.h) continue;
        const SUM* from = line + (int64_t)i * f.s * f.line + (int64_t)(top / f.down) * f.w * f.pixel;
        for (int j = 0; j < f.s; j++) {
            const int left = column + f.before - j * f.dilation_right;
            if (left < 0 || left % f.right != 0 || left / f.right >= f.w) continue;
            sum += from[j * f.line + left / f.right * f.pixel];
        }
    }
    const int64_t at = image * f.yb + feature * f.yf + row * f.yh + column * f.yw;
    ht_put_gathered<T>(a, sum, feature, at, ht_beside_features());
}

template <class T, class SUM = float>
HT_DEVICE void ht_fold(const ht_cuda_args& a, const ht_cuda_fold& f) {
    const bool last = f.line == 1;  // features are neighbours
    const uint32_t lines = last ? f.p : f.features, side = last ? f.features : f.q;  // under 2^31, which the host sees to
    const uint32_t outer = f.images * lines, inner = side * (last ? f.q : f.p);
    for (uint32_t o = blockIdx.y; o < outer; o += gridDim.y) {
        const int image = (int)(o / lines), which = (int)(o % lines);
        for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < inner; at += gridDim.x * blockDim.x) {
            const int across = (int)(at % side), down = (int)(at / side);
            // Called at one place: of two, each inlined, ptxas spills for sm_80 and sm_90a.
            ht_fold_one<T, SUM>(a, f, image, last ? across : which, last ? which : down, last ? down : across);
        }
    }
}
