/* batch_matmul: Y[b] = X[b] . W[b] for matrices at any strides, both factors known with the call. */
#ifndef HT_PRODUCT_H_
#define HT_PRODUCT_H_

#include "kinds/dense.h"
#include "kinds/sliced.h"

/* Axes and operands of the op, by place. */
enum { HT_PRODUCT_B = 0, HT_PRODUCT_M = 1, HT_PRODUCT_N = 2, HT_PRODUCT_K = 3 };
enum { HT_PRODUCT_X = 0, HT_PRODUCT_W = 1, HT_PRODUCT_Y = 2, HT_PRODUCT_BIAS = 3, HT_PRODUCT_SCALE = 4, HT_PRODUCT_MASK = 5 };

/* Tiles of 1 to so many rows, and 1 to so many vectors of columns, have a program each (microkernels/cpu/product.py). */
#define HT_PRODUCT_ROWS 14
#define HT_PRODUCT_VECTORS 4
/* Of other types each kernel has a program of its rows and of 1 to as many vectors as it has (microkernels/cpu/typed_product.py). */
#define HT_TYPED_VECTORS 4

typedef struct { /* how a call is computed */
  const char* name;
  int32_t rows, vectors; /* of a tile at most; an extent is cut evenly into tiles up to it */
  int32_t packs;         /* W is copied a block at a time; 0: read where it is, if its columns lie side by side */
  int32_t k_block;       /* terms of the sum computed at a time; 0: all */
} ht_product_kernel;

typedef struct {
  const ht_kernel_fn* tiles; /* the program of r rows and v vectors is at (v - 1) * HT_PRODUCT_ROWS + r - 1; NULL: no kernel needs it */
  int32_t lanes;             /* of a vector */
  int32_t x_across, w_across; /* stored (k, m), (n, k) */
  const ht_product_kernel* kernels;
  int (*check_type)(const ht_op* op, const char* name, const DLTensor* t, ht_error* error); /* NULL: the operand's type on the CPU */
  const ht_typed* typed;         /* NULL: fp32 */
  const ht_kernel* typed_kernels; /* in the order of `kernels` */
  ht_kernel_fn epilogue;         /* steps behind what a call brings beside; NULL: none */
  const ht_typed_fn (*typed_widths)[HT_TYPED_VECTORS]; /* programs of each of `typed_kernels`; NULL first: its own tile alone */
} ht_product;

/* product_check.c: fills call->product, all strides in elements; 0, or -1 with *error filled. */
int ht_product_check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error);

/* product_check.c: extents of the output; how many, or 0. */
int ht_product_sized(const ht_op* op, const DLTensor* const* inputs, int64_t shape[HT_MAX_RANK]);

/* product_run.c: compute it; 0, or -1 when a program refused its arguments. */
int ht_product_run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads);

/* product_pack.c: `to[i * width + j]` = `from[i * down + j * right]` for `rows` i and `columns` j, 0 for the j from there to width. */
void ht_product_pack(float* to, int64_t width, const float* from, int64_t down, int64_t right, int64_t rows, int64_t columns, int lanes);

typedef struct { /* what is done to finished elements, y = y * scale + bias + mask: pointers to the first one's, NULL where nothing is */
  const float *scale, *bias, *mask;
  int64_t bias_right, mask_down, mask_right;
} ht_product_beside;

/* product_epilogue.c: to `rows` x `columns` of y, then the epilogue's steps; 0, or -1 when their program refused its arguments. One way to
 * compute an element, wherever it lies in its row. */
int ht_product_after(float* y, int64_t y_down, int64_t rows, int64_t columns, const ht_product_beside* beside, const ht_product* product);

typedef struct { /* a box of the output of one matrix */
  int64_t row, rows, column, columns;
} ht_product_box;

/* What a call brings beside a box from (row, column) on, of the matrix whose elements begin at these offsets. */
ht_product_beside ht_product_beside_of(const ht_call* call, const int64_t* offsets, int64_t row, int64_t column);

/* Where the elements of a matrix of the batch begin in each operand. */
void ht_product_offsets(const ht_call* call, int64_t matrix, int64_t offsets[HT_MAX_OPERANDS]);

/* product_small.c: whether matrices of this call are computed several at a time; then `ht_product_small` computes [first, last) of them, in
 * fp32; 0, or -1. `beside`: something follows the product. */
int ht_product_is_small(const ht_product* product, const ht_call* call);
int ht_product_small(const ht_product* product, const ht_call* call, int64_t first, int64_t last, int beside);

/* product_skinny.c: whether this call has few rows or columns (half a vector's lanes), and terms side by side in both factors; then
 * `ht_product_few` computes a box of a matrix, in fp32; 0, or -1. `beside`: something follows the product. */
int ht_product_is_few(const ht_product* product, const ht_call* call);
int ht_product_few(const ht_product* product, const ht_call* call, const int64_t* offsets, ht_product_box at, int beside);

/* product_dot.c: matrices [first, last) of one element each, in fp32; 0, or -1. `beside`: something follows the product. */
int ht_product_single(const ht_product* product, const ht_call* call, int64_t first, int64_t last, int beside);

/* product_typed.c: the box in other types than fp32 by the kernel of that place; 0, or -1. `beside`: something follows the product. */
int ht_product_run_typed(const ht_product* product, int32_t kernel, const ht_call* call, const int64_t* offsets, ht_product_box at, int beside);

/* product_typed.c: matrices [first, last) of one element each, in other types: they are the diagonal of the product of all their rows with all
 * their columns. 0, or -1; 1 where these do not lie evenly spaced, or are too long for a tile: nothing is computed. */
int ht_product_single_typed(const ht_product* product, const ht_kernel* kernel, const ht_call* call, int64_t first, int64_t last, int beside);

extern const ht_kind ht_product_kind;

#endif /* HT_PRODUCT_H_ */
