// Windows of images, read straight into a tile: a row (FIRST, of images whose channels come first: a column) is a pixel, a step along
// k lies in one tap. A thread knows of each pixel that it copies where its window's corner lies; of the step, the tap's distance from
// it. All in units of UNIT elements.
struct ht_window_args : ht_batch_args {
    const ht_cuda_windows& windows;
    HT_DEVICE ht_window_args(const ht_cuda_args& all, const ht_cuda_batch& of, const ht_cuda_windows& seen) : ht_batch_args(all, of), windows(seen) {}
};

// spot: units from x to the corner's first channel, which may lie outside, and the corner's row and column. What is behind the last
// pixel is far below every image. Channels first, pixels are those of the block's own image.
template <int UNIT, bool FIRST, class ARGS>
HT_DEVICE void ht_window_corner(const ARGS& a, int* spot, int pixel) {
    const ht_cuda_windows& see = a.windows;
    const uint32_t line = (uint32_t)pixel / (uint32_t)see.q, image = FIRST ? 0 : line / (uint32_t)see.p;
    const int top = (int)(line - image * see.p) * see.down - see.above, left = (int)(pixel - line * see.q) * see.right - see.before;
    spot[0] = (int)(((int64_t)image * see.xb + top * see.xh + left * see.xw) / UNIT);
    spot[1] = pixel < (FIRST ? a.n : a.m) ? top : 1 << 30;
    spot[2] = left;
}
// tap: units from a corner to the step's first channel, the tap's rows and columns from it, the channel, and the tap in its row.
template <int UNIT, bool FIRST, class ARGS>
HT_DEVICE void ht_window_next(const ARGS& a, int* tap, int step) {
    const ht_cuda_windows& see = a.windows;
    const int64_t apart = FIRST ? see.xc : 1;
    tap[0] += (int)(step * apart), tap[3] += step;
    if (tap[3] * UNIT < see.channels) return;
    tap[0] += (int)((see.dilation_right * see.xw - see.channels * apart) / UNIT);
    tap[2] += see.dilation_right, tap[3] = 0;
    if (++tap[4] < see.s) return;
    tap[0] += (int)((see.dilation_down * see.xh - (int64_t)see.s * see.dilation_right * see.xw) / UNIT);
    tap[1] += see.dilation_down, tap[2] = 0, tap[4] = 0;
}
template <int UNIT, bool FIRST, class ARGS>
HT_DEVICE bool ht_window_inside(const ARGS& a, const int* spot, const int* tap) {
    return (uint32_t)(spot[1] + tap[1]) < (uint32_t)a.windows.h && (uint32_t)(spot[2] + tap[2]) < (uint32_t)a.windows.w;
}
