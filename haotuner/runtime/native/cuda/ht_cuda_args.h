/* What every CUDA kernel of a pack is given: by value, 120 bytes, the same for the host's compiler, nvcc and NVRTC. */
#ifndef HT_CUDA_ARGS_H
#define HT_CUDA_ARGS_H

#ifndef __CUDACC_RTC__ /* NVRTC has no <stdint.h>; a unit of kernels defines the types itself */
#include <stdint.h>
#endif

/* Element type of y and residual: the kernel's own (of bytes int32), or this one. A residual of whole numbers is of fp32. */
enum { HT_Y_OWN, HT_Y_FP32, HT_Y_FP16, HT_Y_BF16, HT_Y_INT32, HT_Y_UINT8, HT_Y_INT8 };

enum { HT_STEP_BITS = 4, HT_STEP_BIAS = 1, HT_STEP_CLAMP = 11, HT_STEP_RESIDUAL = 12, HT_STEP_SCALE = 13, HT_STEP_PRELU = 14 }; /* that read something */

/* Y = the steps of `after` on X * W^T; without any X * W^T + bias + residual, each where it is not NULL. Kernels whose operands come
 * by tensor maps take two CUtensorMap after it: x, then w. What is read with one value a channel is of the kernel's own type (of bytes fp32). */
typedef struct {
    const void* x;        /* (m, k), inner stride 1, row stride ldx */
    const void* w;        /* (n, k) compact, or (k, n) compact */
    const void* bias;     /* n elements, or NULL */
    const void* residual; /* (m, n) of Y's dtype with row stride ldy, or NULL; may be y itself */
    void* y;              /* (m, n), inner stride 1, row stride ldy */
    float* partial;       /* splits > 1: fp32 [splits][m][n], compact, 16-byte aligned; else NULL */
    int32_t m, n, k, ldx, ldy, splits; /* m, n, k, splits >= 1; strides in elements */
    int32_t y_type;       /* HT_Y_OWN and on */
    int32_t ldw;          /* of kernels of a batch: the row stride of w, which need not be compact; others ignore it */
    const void *scale, *low, *high, *slope; /* n elements each, where a step reads them */
    uint64_t after;       /* steps by their numbers (haotuner/ops/epilogue.py), four bits each, the first one lowest */
} ht_cuda_args;

/* Of haotuner_unfold_DTYPE, which lays out what the windows of a convolution see: columns[group][pixel][term], a term being
 * (channel of the group, tap), zeros outside the image. x has any strides, in elements. */
typedef struct {
    const void* x;
    void* columns;
    int64_t xb, xc, xh, xw, pixels; /* pixels: of all images, b * p * q */
    int32_t h, w, p, q, channels, groups, r, s; /* channels of a group */
    int32_t down, right, above, before, dilation_down, dilation_right; /* strides of the window, pads ahead, dilations */
    int32_t lanes, stored; /* 2^lanes threads side by side go on in a pixel's row, which they store so many elements at a time */
} ht_cuda_unfold;

/* Of kernels that read the windows of images straight into their tiles, behind the batch: terms are (tap, channel), as the weight
 * (features, terms) has them. Channels last, rows of x are pixels of all images: args.x is the image, a group's channels by the batch's
 * stride, args.w the weight. Channels first, columns of w are pixels of an image: args.w is that, ldw xc, args.x the weight. */
typedef struct {
    int64_t xb, xh, xw, xc; /* strides of the image in elements; channels last, channels lie side by side */
    int32_t h, w, p, q, channels, s; /* channels of a group; taps to the right */
    int32_t down, right, above, before, dilation_down, dilation_right; /* strides of the window, pads ahead, dilations */
} ht_cuda_windows;

/* Of kernels of transposed convolutions, in the place of the windows: results at place, place + stride, ... along an axis (a phase) see
 * an ordinary window of some taps, whose rows go backwards. w: of each phase, down then right, its groups' (features, taps, channels). */
typedef struct {
    int32_t count, taps, before, first; /* results; taps that reach them; their first one's row is -before; taps of the phases ahead */
} ht_cuda_phase;

#define HT_CUDA_PHASES 8 /* of an axis: the largest stride */
typedef struct {
    ht_cuda_windows windows; /* what all phases share; p, q, s, above and before are each one's own */
    int32_t images, p, q, down, right, taps_right; /* of y, whose pixels lie ldy apart; phases, as strides; taps to the right in all */
    ht_cuda_phase tall[HT_CUDA_PHASES], wide[HT_CUDA_PHASES];
} ht_cuda_phases;

/* Of haotuner_fold_DTYPE, ahead of its arguments, of which y, residual and what the steps read count: gathers the taps that reach each
 * element of a transposed convolution's result. Columns: fp32, of bytes int32, at image * `image` + (feature, tap) * `line` + pixel * `pixel`. */
typedef struct {
    const void* columns;
    int64_t image, line, pixel;   /* in elements, as all strides */
    int64_t yb, yf, yh, yw;       /* of y and residual */
    int32_t images, features, h, w, p, q, r, s; /* h, w: of x; p, q: of y */
    int32_t down, right, above, before, dilation_down, dilation_right; /* strides, pads ahead, dilations */
} ht_cuda_fold;

/* Of kernels of a convolution without columns, ahead of their arguments, of which x, w (features, taps), y, residual and what the steps
 * read count: feature f reads channel f / `each` alone. */
typedef struct {
    int64_t xb, xc, xh, xw, yb, yf, yh, yw; /* strides in elements; the latter of residual, too */
    int32_t images, features, each, h, w, p, q, above, before, zero;
} ht_cuda_direct;

/* Of kernels whose rows come in groups, behind the arguments: group i is rows ends[i - 1] up to ends[i] of X and Y, times the i-th
 * of `count` matrices W and biases, one after the other. Ends that go back or lie outside X are moved to what is possible; rows
 * behind the last end are left alone. `ends` lies on the device. */
typedef struct {
    const int32_t* ends;
    int32_t count, zero;
} ht_cuda_groups;

/* Of kernels of a batch, behind the arguments: matrix `first + blockIdx.z` of x, w and y, counted over up to three axes with
 * strides of their own, the last one fastest; a stride of 0 shares a matrix. Axes that are not there have the extent 1. */
#define HT_CUDA_BATCH_AXES 3
typedef struct {
    int64_t x[HT_CUDA_BATCH_AXES], w[HT_CUDA_BATCH_AXES], y[HT_CUDA_BATCH_AXES]; /* strides in elements */
    int32_t extents[HT_CUDA_BATCH_AXES], first;
    float factor;         /* of all matrices, where scale is NULL: what follows is told (x * w) * factor + mask */
    int32_t channel_rows; /* values of a channel are of rows of Y, not of columns */
    const float* scale;   /* of each matrix, or NULL */
    const void* mask;     /* of Y's dtype, or NULL */
    int64_t scale_apart[HT_CUDA_BATCH_AXES], mask_apart[HT_CUDA_BATCH_AXES], mask_down, mask_right; /* in elements; 0 shares */
    int64_t channel_apart[HT_CUDA_BATCH_AXES]; /* of bias, scale, low and high; residual lies as y does */
} ht_cuda_batch;

#endif
