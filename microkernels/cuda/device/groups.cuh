// Rows in groups, each with a matrix of its own: which group a block serves. The grid has blocks for the worst cut of m; those
// behind the last group's end at once. A warp looks at 32 groups at a time, all warps of a block at the same.

struct ht_place {
    int block, x_row, w_row;  // of the group's own grid; its first row of X, and of W in the stack of all
};

HT_DEVICE int ht_from_before(int value, int lane, int steps) { return __shfl_sync(0xffffffffu, value, max(lane - steps, 0)); }

template <class T, int TILE_M, int TILE_N, int KN>
HT_DEVICE bool ht_enter_group(ht_cuda_args& a, const ht_cuda_groups& groups, ht_place& at) {
    const int lane = threadIdx.x % 32, across = (a.n + TILE_N - 1) / TILE_N;
    int left = blockIdx.x, begin = 0;  // blocks, and rows, of all groups before
    for (int first = 0; first < groups.count; first += 32) {
        int end = first + lane < groups.count ? min(groups.ends[first + lane], a.m) : 0;
        end = max(end, begin);
#pragma unroll
        for (int steps = 1; steps < 32; steps *= 2) end = max(end, ht_from_before(end, lane, steps));
        const int before = ht_from_before(end, lane, 1), start = lane == 0 ? begin : before;
        const int blocks = (end - start + TILE_M - 1) / TILE_M * across;
        int upto = blocks;
#pragma unroll
        for (int steps = 1; steps < 32; steps *= 2) {
            const int more = ht_from_before(upto, lane, steps);
            if (lane >= steps) upto += more;
        }
        int mine = upto > left ? lane : 32;
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) mine = min(mine, __shfl_xor_sync(0xffffffffu, mine, apart));
        if (mine < 32) {
            const int group = ht_uniform(first + mine);
            at.block = left - __shfl_sync(0xffffffffu, upto - blocks, mine);
            at.x_row = __shfl_sync(0xffffffffu, start, mine);
            at.w_row = group * (KN ? a.k : a.n);
            a.m = __shfl_sync(0xffffffffu, end, mine) - at.x_row;
            a.x = (const T*)a.x + (int64_t)at.x_row * a.ldx;
            a.y = (char*)a.y + (int64_t)at.x_row * a.ldy * ht_y_bytes<T>(a);
            a.w = (const T*)a.w + (int64_t)group * a.n * a.k;
            a.residual = ht_moved(a.residual, (int64_t)at.x_row * a.ldy, ht_residual_bytes<T>(a));
            ht_move_channels<T>(a, (int64_t)group * a.n);
            return true;
        }
        left -= __shfl_sync(0xffffffffu, upto, 31);
        begin = __shfl_sync(0xffffffffu, end, 31);
    }
    return false;
}
