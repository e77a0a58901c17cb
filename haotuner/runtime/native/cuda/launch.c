/* See launch.h. */
#include "launch.h"

#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int aligned(const void* address, int64_t bytes) { return (uintptr_t)address % (uintptr_t)bytes == 0; }

int ht_cuda_fits(const ht_cuda_kernel* kernel, const ht_cuda_args* args, ht_error* error) {
  const int64_t element = ht_cuda_bytes(kernel->dtype), step = kernel->maps ? 16 / element : 1;
  const int64_t vector = kernel->vector > step ? kernel->vector : step; /* elements */
  const int32_t w_columns = kernel->kn ? args->n : args->k, w_rows = kernel->kn ? args->k : args->n;
  const int32_t w_stride = kernel->batch ? args->ldw : w_columns;
  const int32_t x_rows = kernel->kn == 2 ? args->k : args->m, x_columns = kernel->kn == 2 ? args->m : args->k;
  if (!aligned(args->x, vector * element) || (x_rows > 1 && args->ldx % vector != 0))
    return ht_refuse(error, "ValueError",
                     "x begins at an address, or has a row stride (%d), that is no multiple of %d elements, which this pack's kernels "
                     "need: pass a contiguous copy",
                     (int)args->ldx, (int)vector);
  if (!aligned(args->w, vector * element))
    return ht_refuse(error, "ValueError", "weight begins at an address that is no multiple of %d elements: pass a copy of it", (int)vector);
  if (kernel->batch && w_rows > 1 && w_stride % vector != 0)
    return ht_refuse(error, "ValueError", "w has a row stride (%d) that is no multiple of %d elements, which this pack's kernels need: pass a contiguous copy",
                     (int)w_stride, (int)vector);
  if (x_columns % vector != 0 || w_columns % vector != 0 || args->k % vector != 0)
    return ht_refuse(error, "ValueError", "%.60s needs extents that are multiples of %d: the pack is damaged, run haotuner verify",
                     kernel->name, (int)vector);
  if (kernel->maps && args->m > 1 && args->ldx < args->k)
    return ht_refuse(error, "ValueError", "rows of x overlap (row stride %d under k = %d): pass a contiguous copy", (int)args->ldx,
                     (int)args->k);
  if (!kernel->maps && ((int64_t)x_rows * args->ldx > HT_CUDA_OPERAND_ELEMENTS || (int64_t)w_rows * w_stride > HT_CUDA_OPERAND_ELEMENTS))
    return ht_refuse(error, "ValueError", "x (m * row stride) or weight (n * k) holds over 2^31-1 elements: pass fewer rows at a time");
  return 0;
}

int ht_cuda_encode(CUtensorMap* map, uint8_t dtype, const void* data, int64_t rows, int64_t columns, int64_t stride,
                   const int32_t box[2], int32_t swizzle, ht_error* error) {
  static const int types[] = {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  if (cu->TensorMapEncodeTiled == NULL)
    return ht_refuse(error, "RuntimeError", "the CUDA driver is too old: it lacks cuTensorMapEncodeTiled; install one for CUDA 12 or later");
  const uint64_t extents[2] = {(uint64_t)columns, (uint64_t)rows}; /* innermost first */
  const uint64_t strides[1] = {(uint64_t)(stride * ht_cuda_bytes(dtype))};
  const uint32_t boxes[2] = {(uint32_t)box[1], (uint32_t)box[0]}, steps[2] = {1, 1};
  const int swizzled = swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                       : CU_TENSOR_MAP_SWIZZLE_NONE;
  CUresult result = cu->TensorMapEncodeTiled(map, types[dtype], 2, (void*)data, extents, strides, boxes, steps, 0, swizzled,
                                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, 0);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "cuTensorMapEncodeTiled");
}

int ht_cuda_encode_w(CUtensorMap* map, const ht_cuda_kernel* kernel, const void* w, int64_t stack, int64_t n, int64_t k, ht_error* error) {
  const int64_t rows = stack * (kernel->kn ? k : n), columns = kernel->kn ? n : k;
  return ht_cuda_encode(map, kernel->dtype, w, rows, columns, columns, kernel->box_w, kernel->swizzle, error);
}

/* So many row tiles by all column tiles, of some matrices; `more`: groups or a batch, NULL where the kernel takes neither. `last`: w's
 * tensor map, or the windows. */
static int launch(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const void* more, int64_t row_tiles,
                  int64_t matrices, const void* last, CUstream stream, ht_error* error) {
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  const int64_t blocks = row_tiles * ceil_div(args->n, kernel->tile_n);
  if (blocks > HT_EXTENT_LIMIT || args->splits < 1 || args->splits > 65535)
    return ht_refuse(error, "ValueError", "m = %d times n = %d needs more blocks than a launch may have: pass fewer rows at a time",
                     (int)args->m, (int)args->n);
  CUtensorMap x_map;
  if (kernel->maps && ht_cuda_encode(&x_map, kernel->dtype, args->x, args->m, args->k, args->m > 1 ? args->ldx : args->k, kernel->box_x,
                                     kernel->swizzle, error) != 0)
    return -1;
  void* params[4] = {(void*)args, (void*)more, NULL, NULL};
  void** maps = params + (more == NULL ? 1 : 2);
  maps[0] = &x_map, maps[1] = (void*)last;
  if (kernel->windows) maps[0] = (void*)last;
  CUresult result = cu->LaunchKernel(function, (unsigned)blocks, (unsigned)args->splits, (unsigned)matrices, (unsigned)kernel->threads, 1, 1,
                                     (unsigned)kernel->shared_bytes, stream, params, NULL);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching a kernel");
}

int ht_cuda_launch_groups(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_groups* groups,
                          const CUtensorMap* w_map, CUstream stream, ht_error* error) {
  if (args->m == 0 || args->n == 0) return 0;
  /* A group of one row takes a tile; every tile_m rows more take another. Where the cut lies is known on the device alone. */
  const int64_t filled = args->m < groups->count ? args->m : groups->count;
  return launch(kernel, function, args, groups, filled + (args->m - filled) / kernel->tile_m, 1, w_map, stream, error);
}

static int launch_batch(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_batch* batch,
                        const ht_cuda_windows* windows, int64_t matrices, CUstream stream, ht_error* error) {
  enum { MOST = 65535 }; /* of a grid's third axis */
  if (args->m == 0 || args->n == 0) return 0;
  ht_cuda_batch some = *batch;
  for (int64_t done = 0; done < matrices; done += MOST) {
    some.first = (int32_t)done;
    if (launch(kernel, function, args, &some, ceil_div(args->m, kernel->tile_m), matrices - done < MOST ? matrices - done : MOST, windows, stream,
               error) != 0)
      return -1;
  }
  return 0;
}

int ht_cuda_launch_batch(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_batch* batch,
                         int64_t matrices, CUstream stream, ht_error* error) {
  return launch_batch(kernel, function, args, batch, NULL, matrices, stream, error);
}

int ht_cuda_launch_windows(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const ht_cuda_batch* batch,
                           const ht_cuda_windows* windows, int64_t matrices, CUstream stream, ht_error* error) {
  return launch_batch(kernel, function, args, batch, windows, matrices, stream, error);
}

int ht_cuda_windows_fit(const ht_cuda_kernel* kernel, const ht_cuda_args* args, const ht_cuda_windows* windows, ht_error* error) {
  const int64_t vector = kernel->vector, bytes = vector * ht_cuda_bytes(kernel->dtype);
  if (kernel->windows == HT_WINDOWS_FIRST) return 0; /* pixels are read one by one */
  if (!aligned(args->x, bytes) || windows->xb % vector != 0 || windows->xh % vector != 0 || windows->xw % vector != 0)
    return ht_refuse(error, "ValueError", "x begins at an address, or has a stride, that is no multiple of %d elements, which this pack's kernels need: pass a "
                     "contiguous copy", (int)vector);
  return 0; /* the weight is turned into memory that is aligned */
}

int ht_cuda_launch(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_args* args, const CUtensorMap* w_map,
                   CUstream stream, CUfunction reduce, ht_error* error) {
  if (args->m == 0 || args->n == 0) return 0;
  const int64_t outputs = (int64_t)args->m * args->n;
  if (launch(kernel, function, args, NULL, ceil_div(args->m, kernel->tile_m), 1, w_map, stream, error) != 0) return -1;
  if (args->splits == 1) return 0;
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  void* params[1] = {(void*)args};
  const int64_t shares = ceil_div(outputs, HT_CUDA_REDUCE_THREADS * HT_CUDA_REDUCE_ELEMENTS);
  const CUresult result = cu->LaunchKernel(reduce, (unsigned)(shares > HT_EXTENT_LIMIT ? HT_EXTENT_LIMIT : shares), 1, 1, HT_CUDA_REDUCE_THREADS, 1, 1, 0,
                            stream, params, NULL);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching the sum of the parts");
}

static int64_t within(int64_t value, int64_t least, int64_t most) { return value < least ? least : value > most ? most : value; }

int ht_cuda_launch_unfold(CUfunction function, const ht_cuda_unfold* unfold, int units, CUstream stream, ht_error* error) {
  enum { MOST = 65535, RESIDENT = 8 }; /* of a grid's other axes; blocks of a multiprocessor. Threads go on where blocks are fewer */
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  ht_cuda_unfold told = *unfold;
  /* Channels first, pixels lie side by side: two threads fill a sector of a row, and the next ones read the next pixels. */
  const int most = unfold->stored > 1 && unfold->xw == 1 && unfold->xc != 1 ? 1 : 5;
  const int64_t pieces = (int64_t)unfold->channels * unfold->r * unfold->s / unfold->stored;
  for (told.lanes = 0; told.lanes < most && pieces >> (told.lanes + 1) > 0;) ++told.lanes;
  const int64_t z = within(unfold->groups, 1, MOST), x = within(ceil_div(unfold->pixels, HT_CUDA_REDUCE_THREADS >> told.lanes), 1, HT_EXTENT_LIMIT);
  const int64_t y = within(ceil_div((int64_t)units * RESIDENT, x * z), 1, within(ceil_div(pieces, 1 << told.lanes), 1, MOST));
  void* params[1] = {&told};
  const CUresult result = cu->LaunchKernel(function, (unsigned)x, (unsigned)y, (unsigned)z, HT_CUDA_REDUCE_THREADS, 1, 1, 0, stream, params, NULL);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching the layout of image columns");
}

/* Kernels count so far in 32 bits. */
static int check_walk(int64_t outer, int64_t inner, ht_error* error) {
  if (outer <= HT_EXTENT_LIMIT && inner <= HT_EXTENT_LIMIT) return 0;
  return ht_refuse(error, "ValueError", "the output has %lld lines of %lld elements, over 2^31-1 of one: pass fewer images at a time", (long long)outer,
                   (long long)inner);
}

int ht_cuda_launch_fold(CUfunction function, const ht_cuda_fold* fold, const ht_cuda_args* args, int units, CUstream stream, ht_error* error) {
  enum { MOST = 65535, RESIDENT = 8 };
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  const int last = fold->line == 1;
  const int64_t outer = (int64_t)fold->images * (last ? fold->p : fold->features), inner = (int64_t)fold->q * (last ? fold->features : fold->p);
  if (check_walk(outer, inner, error) != 0) return -1;
  const int64_t y = within(outer, 1, MOST), x = within((int64_t)units * RESIDENT / y + 1, 1, ceil_div(inner, HT_CUDA_REDUCE_THREADS));
  void* params[2] = {(void*)fold, (void*)args};
  const CUresult result = cu->LaunchKernel(function, (unsigned)x, (unsigned)y, 1, HT_CUDA_REDUCE_THREADS, 1, 1, 0, stream, params, NULL);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching what gathers a transposed convolution");
}

int ht_cuda_launch_direct(const ht_cuda_kernel* kernel, CUfunction function, const ht_cuda_direct* direct, const ht_cuda_args* args, int units,
                          CUstream stream, ht_error* error) {
  enum { MOST = 65535, RESIDENT = 8 };
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  const int last = direct->yf == 1 && direct->features > 1; /* features side by side */
  const int64_t down = ceil_div(direct->p, kernel->tile_m), across = ceil_div(direct->q, kernel->tile_n);
  const int64_t outer = (int64_t)direct->images * (last ? down : direct->features), inner = across * (last ? direct->features : down);
  if (check_walk(outer, inner, error) != 0) return -1;
  const int64_t y = within(outer, 1, MOST), x = within(ceil_div((int64_t)units * RESIDENT, y), 1, within(ceil_div(inner, kernel->threads), 1, HT_EXTENT_LIMIT));
  void* params[2] = {(void*)direct, (void*)args};
  const CUresult result = cu->LaunchKernel(function, (unsigned)x, (unsigned)y, 1, (unsigned)kernel->threads, 1, 1, 0, stream, params, NULL);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching a convolution");
}
