// A convolution of one channel a feature, without columns: a thread has TP rows of TQ pixels of one feature. Each row of x that they
// meet is read once, its pixels by all taps; sums are in the order of the taps. Neighbouring threads have neighbouring pixels, or
// features where these come last.
template <class T, int R, int S, int SD, int SR, int DD, int DR, int TP, int TQ>
HT_DEVICE void ht_direct_some(const ht_cuda_args& a, const ht_cuda_direct& d, int image, int feature, int row0, int column0) {
    constexpr int HIGH = (TP - 1) * SD + (R - 1) * DD + 1, LINE = (TQ - 1) * SR + (S - 1) * DR + 1;
    const T* weight = (const T*)a.w + (int64_t)feature * (R * S);
    float taps[R * S], sums[TP][TQ] = {};
#pragma unroll
    for (int i = 0; i < R * S; i++) taps[i] = (float)weight[i];
    const int top = row0 * SD - d.above, left = column0 * SR - d.before;
    const T* corner = (const T*)a.x + image * d.xb + (int64_t)(feature / d.each) * d.xc;
#pragma unroll
    for (int y = 0; y < HIGH; y++) {
        bool met = false;
#pragma unroll
        for (int t = 0; t < TP; t++) met |= y - t * SD >= 0 && (y - t * SD) % DD == 0 && (y - t * SD) / DD < R;
        if (!met || (uint32_t)(top + y) >= (uint32_t)d.h) continue;
        const T* from = corner + (top + y) * d.xh + left * d.xw;
        float line[LINE];
#pragma unroll
        for (int x = 0; x < LINE; x++) line[x] = (uint32_t)(left + x) < (uint32_t)d.w ? (float)from[x * d.xw] : 0.0f;
#pragma unroll
        for (int t = 0; t < TP; t++) {
            if (y - t * SD < 0 || (y - t * SD) % DD != 0 || (y - t * SD) / DD >= R) continue;
#pragma unroll
            for (int j = 0; j < S; j++)
#pragma unroll
                for (int u = 0; u < TQ; u++) sums[t][u] += taps[(y - t * SD) / DD * S + j] * line[u * SR + j * DR];
        }
    }
    const int64_t first = image * d.yb + feature * d.yf + row0 * d.yh + column0 * d.yw;
#pragma unroll
    for (int t = 0; t < TP; t++)
#pragma unroll
        for (int u = 0; u < TQ; u++)
            if (row0 + t < d.p && column0 + u < d.q)
                ht_put_after<T, 1>(a, &sums[t][u], feature, 0, first + t * d.yh + u * d.yw, ht_beside_features());
}

template <class T, int R, int S, int SD, int SR, int DD, int DR, int TP, int TQ, bool LAST>
HT_DEVICE void ht_direct(const ht_cuda_args& a, const ht_cuda_direct& d) {
    const int down = (d.p + TP - 1) / TP, across = (d.q + TQ - 1) / TQ;
    // Under 2^31, which the host sees to: divisions of 64 bits are calls, around which registers spill.
    const uint32_t lines = LAST ? down : d.features, side = LAST ? d.features : across;
    const uint32_t outer = d.images * lines, inner = side * (LAST ? across : down);
    for (uint32_t o = blockIdx.y; o < outer; o += gridDim.y) {
        const int image = (int)(o / lines), which = (int)(o % lines);
        for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < inner; at += gridDim.x * blockDim.x) {
            const int one = (int)(at % side), other = (int)(at / side);
            if (LAST) ht_direct_some<T, R, S, SD, SR, DD, DR, TP, TQ>(a, d, image, one, which * TP, other * TQ);
            else ht_direct_some<T, R, S, SD, SR, DD, DR, TP, TQ>(a, d, image, which, other * TP, one * TQ);
        }
    }
}
