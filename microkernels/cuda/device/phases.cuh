// Transposed convolutions whose windows are read straight into a tile: the results of one residue of their places (a phase) see an
// ordinary window, of its taps alone, whose rows go back through the image. A block computes a tile of one phase of one group.
struct ht_phase_args : ht_batch_args {
    const ht_cuda_phases& phases;
    ht_cuda_windows windows;  // of the block's phase
    HT_DEVICE ht_phase_args(const ht_cuda_args& all, const ht_cuda_batch& of, const ht_cuda_phases& seen)
        : ht_batch_args(all, of), phases(seen), windows(seen.windows) {}
};

// Whether the block has a tile of BM x BN, once it knows its phase and its group.
template <class T, int BM, int BN>
HT_DEVICE bool ht_enter_phase(ht_phase_args& a) {
    const ht_cuda_phases& all = a.phases;
    const int groups = a.batch.extents[HT_CUDA_BATCH_AXES - 1], which = a.batch.first + (int)blockIdx.z;
    const int group = which % groups, phase = which / groups;
    const ht_cuda_phase &tall = all.tall[phase / all.right], &wide = all.wide[phase % all.right];
    const int taps = tall.taps * wide.taps;
    a.m = all.images * tall.count * wide.count;
    if ((int64_t)blockIdx.x >= (int64_t)((a.m + BM - 1) / BM) * ((a.n + BN - 1) / BN)) return false;
    a.k = a.ldw = taps * a.windows.channels;
    a.windows.p = tall.count, a.windows.q = wide.count, a.windows.s = wide.taps;
    a.windows.above = tall.before, a.windows.before = wide.before;
    const int64_t ahead = (int64_t)tall.first * all.taps_right + tall.taps * wide.first;  // taps of the phases before it
    a.x = (const T*)a.x + group * a.batch.x[HT_CUDA_BATCH_AXES - 1];
    a.w = (const T*)a.w + (ahead * groups + (int64_t)group * taps) * a.n * a.windows.channels;
    const int64_t y = (int64_t)(phase / all.right * all.q + phase % all.right) * a.ldy + group * a.n;
    a.y = (char*)a.y + y * ht_y_bytes<T>(a);
    a.residual = ht_moved(a.residual, y, ht_residual_bytes<T>(a));
    ht_move_channels<T>(a, group * a.n);
    return true;
}

// Where the results of a tile's rows lie.
struct ht_beside_phase {
    uint32_t rows_of, columns_of;  // of the phase in an image
    int down, right, p, q;

    HT_DEVICE bool rows() const { return false; }
    HT_DEVICE bool idle() const { return true; }
    template <class T, int N>
    HT_DEVICE void begin(float*, int, int) const {}
    HT_DEVICE int64_t place(const ht_cuda_args& a, int row, int column) const {
        const uint32_t line = (uint32_t)row / columns_of, image = line / rows_of;
        const int64_t y = (int64_t)image * p + (int)(line - image * rows_of) * down;
        return (y * q + (int)((uint32_t)row - line * columns_of) * right) * a.ldy + column;
    }
};
template <class T>
HT_DEVICE ht_beside_phase ht_beside(const ht_phase_args& a) {
    return {(uint32_t)a.windows.p, (uint32_t)a.windows.q, a.phases.down, a.phases.right, a.phases.p, a.phases.q};
}
