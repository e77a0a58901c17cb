/* One kernel launch, for packs and for the library that times: what is timed is what is served. */
#ifndef HT_CUDA_LAUNCH_H_
#define HT_CUDA_LAUNCH_H_

#include "driver.h"
#include "ht_cuda_args.h"

enum { HT_WINDOWS_LAST = 1, HT_WINDOWS_FIRST = 2, HT_WINDOWS_PHASES = 3 };
enum { HT_CUDA_FP32 = 0, HT_CUDA_FP16 = 1, HT_CUDA_BF16 = 2, HT_CUDA_INT8 = 3 }; /* INT8: of w; x may have no sign */

typedef struct { /* a compiled kernel, as its family describes it */
  const char* name;              /* its symbol in the cubin */
  int32_t tile_m, tile_n, threads, shared_bytes; /* shared_bytes: dynamic */
  int32_t vector;                /* elements: base addresses of x and w, ldx and k (kn: n) must be multiples of it */
  int32_t maps;                  /* 0, or 2: x's tensor map and w's follow the arguments */
  int32_t box_x[2], box_w[2];    /* of the maps: rows, columns */
  int32_t swizzle;               /* of the maps, in bytes: 0, 32, 64 or 128 */
  int32_t kn;                    /* w is (k, n); 2: x is (k, m) as well */
  uint8_t dtype;                 /* HT_CUDA_FP32 and on */
  int32_t splits_max;            /* 1: it cannot split k */
  int32_t groups;                /* it takes ht_cuda_groups behind its arguments */
  int32_t batch;                 /* it takes ht_cuda_batch there, and w at a row stride of its own */
  int32_t windows;               /* and ht_cuda_windows behind that: x is images, whose windows it reads, channels last; HT_WINDOWS_FIRST: w; _PHASES: ht_cuda_phases */
  int32_t direct;                /* it takes ht_cuda_direct ahead of them: of a thread's pixels tile_m are rows, tile_n side by side */
} ht_cuda_kernel;

#define HT_CUDA_REDUCE_THREADS 256
#define HT_CUDA_REDUCE_ELEMENTS 4           /* of y that one of its threads takes at a time */
#define HT_CUDA_OPERAND_ELEMENTS 2147483647 /* offsets into x (rows * stride) and w (n * k) are 32-bit without tensor maps */

static inline int64_t ht_cuda_bytes(uint8_t dtype) { return dtype == HT_CUDA_FP32 ? 4 : dtype == HT_CUDA_INT8 ? 1 : 2; }
/* Of what is read with one value a channel. */
static inline int64_t ht_cuda_channel_bytes(uint8_t dtype) { return dtype == HT_CUDA_INT8 ? 4 : ht_cuda_bytes(dtype); }
static inline int32_t ht_cuda_y_type(uint8_t dtype, int32_t y_type) {
  static const uint8_t own[] = {HT_Y_FP32, HT_Y_FP16, HT_Y_BF16, HT_Y_INT32};
  return y_type == HT_Y_OWN ? own[dtype] : y_type;
}
/* Of an element of y, and of the residual. */
static inline int64_t ht_cuda_y_bytes(uint8_t dtype, int32_t y_type) {
  const int32_t type = ht_cuda_y_type(dtype, y_type);
  return type == HT_Y_FP32 || type == HT_Y_INT32 ? 4 : type >= HT_Y_UINT8 ? 1 : 2;
}
static inline int64_t ht_cuda_residual_bytes(uint8_t dtype, int32_t y_type) {
  const int32_t type = ht_cuda_y_type(dtype, y_type);
  return type == HT_Y_FP16 || type == HT_Y_BF16 ? 2 : 4;
}

/* Whether operands at these addresses and strides suit the kernel; *error says which does not. Extents of args count as well. */
int ht_cuda_fits(const ht_cuda_kernel* kernel, const ht_cuda_args* args, ht_error* error);

/* A tensor map of (rows, columns) elements at `data` with row stride `stride` elements, in boxes of box[0] rows x box[1] columns.
 * Host memory only, no context needed. */
int ht_cuda_encode(CUtensorMap* map, uint8_t dtype, const void* data, int64_t rows, int64_t columns, int64_t stride,
                   const int32_t box[2], int32_t swizzle, ht_error* error);
/* Of `stack` matrices, one after the other. */
int ht_cuda_encode_w(CUtensorMap* map, const ht_cuda_kernel* kernel, const void* w, int64_t stack, int64_t n, int64_t k, ht_error* error);

/* Launch on `stream`, of the context that is current: the kernel, and with args->splits > 1 the reduction behind it. Fits were
 * checked. Encodes x's map where the kernel wants maps. Allocates nothing, waits for nothing. m = 0 launches nothing. */
int ht_cuda_launch(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const CUtensorMap* w_map,
                   CUstream stream, CUfunction reduce, ht_error* error);

/* The same of a kernel with groups: one launch, with blocks enough for any cut of m rows into groups->count of them. */
int ht_cuda_launch_groups(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_groups* groups,
                          const CUtensorMap* w_map, CUstream stream, ht_error* error);

/* The same of a kernel of a batch of so many matrices (batch->first is ignored); launches as many times as the grid's third axis asks. */
int ht_cuda_launch_batch(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_batch* batch,
                         int64_t matrices, CUstream stream, ht_error* error);

/* The same of a kernel that reads windows: of `matrices` groups, whose images the windows see; of phases what `windows` begins. */
int ht_cuda_launch_windows(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_batch* batch,
                           const ht_cuda_windows* windows, int64_t matrices, CUstream stream, ht_error* error);

/* Whether an image's address and strides, and the weight's, suit it; *error says which does not. */
int ht_cuda_windows_fit(const ht_cuda_kernel* kernel, const ht_cuda_args* args, const ht_cuda_windows* windows, ht_error* error);

/* Lays out image columns, by the pack's kernel of their element type, on a device of so many multiprocessors. Its `lanes` are
 * chosen here; `stored` is 1, or 16 bytes' worth where rows hold whole such pieces. */
int ht_cuda_launch_unfold(CUfunction function, const ht_cuda_unfold* unfold, int units, CUstream stream, ht_error* error);

/* Gathers the result of a transposed convolution, by the pack's kernel of its element type. */
int ht_cuda_launch_fold(CUfunction function, const ht_cuda_fold* fold, const ht_cuda_args* args, int units, CUstream stream, ht_error* error);

/* A convolution without columns, on a device of so many multiprocessors. */
int ht_cuda_launch_direct(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_direct* direct, const ht_cuda_args* args, int units,
                          CUstream stream, ht_error* error);

#endif /* HT_CUDA_LAUNCH_H_ */
