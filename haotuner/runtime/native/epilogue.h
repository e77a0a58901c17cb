/* Epilogues: element-wise steps on a part of an output that is still in cache, by a program of the pack (microkernels/cpu/epilogue.py).
 *
 * For the loops of every kind: call ht_epilogue_run for each part once, after the last term of its sums. Values of a channel run along
 * columns, or along rows (column_stride 0) where the program was made so. */
#ifndef HT_EPILOGUE_H_
#define HT_EPILOGUE_H_

#include <string.h>

#include "copy.h"
#include "ht.h"

#define HT_LEFT_ROWS 16 /* of a scratch block for the columns that whole vectors leave */
#define HT_MOST_LANES 16

/* The program on rows x columns, columns being whole vectors. */
static inline int ht_epilogue_call(ht_kernel_fn fn, float* y, int64_t ldy, const ht_extra* extra, int count, int64_t rows,
                                   int64_t columns) {
  int64_t shape[2] = {rows, columns}, strides[HT_MAX_EXTRA + 1][2];
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType fp32 = {kDLFloat, 32, 1};
  DLTensor tensors[HT_MAX_EXTRA + 1];
  TVMFFIAny args[HT_MAX_EXTRA + 1], result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  for (int i = 0; i <= count; ++i) {
    strides[i][0] = i == 0 ? ldy : extra[i - 1].row_stride;
    strides[i][1] = 1; /* of values of a row only the first is read */
    tensors[i] = (DLTensor){i == 0 ? (void*)y : (void*)extra[i - 1].data, cpu, 2, fp32, shape, strides[i], 0};
    args[i].type_index = kTVMFFIDLTensorPtr;
    args[i].v_ptr = &tensors[i];
  }
  return fn(NULL, args, count + 1, &result);
}

/* Rows of fewer columns than a vector has, zeros behind them. */
static inline void ht_epilogue_copy(float* to, int lanes, const float* from, int64_t down, int64_t right, int64_t rows, int64_t columns) {
  memset(to, 0, (size_t)(rows * lanes) * sizeof *to);
  for (int64_t r = 0; r < rows; ++r)
    if (right == 1) ht_copy_few(to + r * lanes, from + r * down, columns * (int64_t)sizeof *to);
    else
      for (int64_t c = 0; c < columns; ++c) to[r * lanes + c] = from[r * down + c * right];
}

/* The columns that are left, fewer than a vector, of so many rows that a scratch block holds them. */
__attribute__((noinline)) static int ht_epilogue_left(ht_kernel_fn fn, int lanes, float* y, int64_t ldy, const ht_extra* extra, int count,
                                                      int64_t rows, int64_t columns) {
  float scratch[HT_MAX_EXTRA + 1][HT_LEFT_ROWS * HT_MOST_LANES];
  ht_extra copies[HT_MAX_EXTRA];
  copies[0] = (ht_extra){0}; /* of steps that read nothing */
  ht_epilogue_copy(scratch[0], lanes, y, ldy, 1, rows, columns);
  for (int i = 0; i < count; ++i) {
    const ht_extra e = extra[i];
    copies[i] = (ht_extra){scratch[i + 1], lanes, 1};
    if (e.column_stride == 0) copies[i] = e; /* values of the rows: the first column is read alone */
    else ht_epilogue_copy(scratch[i + 1], lanes, e.data, e.row_stride, e.column_stride, e.row_stride == 0 ? 1 : rows, columns);
  }
  int rc = ht_epilogue_call(fn, scratch[0], lanes, copies, count, rows, lanes);
  for (int64_t r = 0; r < rows; ++r) ht_copy_few(y + r * ldy, scratch[0] + r * lanes, columns * (int64_t)sizeof *y);
  return rc;
}

/* A part of the output that begins at y, which is (row, column) of the whole; 0, or -1 where the program refused its arguments. */
static inline int ht_epilogue_run(ht_kernel_fn fn, int lanes, float* y, int64_t ldy, const ht_extra* extra, int count, int64_t row,
                                  int64_t column, int64_t rows, int64_t columns) {
  ht_extra part[HT_MAX_EXTRA];
  int64_t whole = columns / lanes * lanes;
  part[0] = (ht_extra){0}; /* of steps that read nothing */
  for (int i = 0; i < count; ++i) {
    part[i] = extra[i];
    part[i].data += row * extra[i].row_stride + column * extra[i].column_stride;
  }
  if (whole > 0 && ht_epilogue_call(fn, y, ldy, part, count, rows, whole) != 0) return -1;
  if (whole == columns) return 0;
  for (int i = 0; i < count; ++i) part[i].data += whole * extra[i].column_stride;
  for (int64_t r = 0; r < rows; r += HT_LEFT_ROWS) {
    int64_t some = rows - r < HT_LEFT_ROWS ? rows - r : HT_LEFT_ROWS;
    if (ht_epilogue_left(fn, lanes, y + r * ldy + whole, ldy, part, count, some, columns - whole) != 0) return -1;
    for (int i = 0; i < count; ++i) part[i].data += some * extra[i].row_stride;
  }
  return 0;
}

#endif /* HT_EPILOGUE_H_ */
