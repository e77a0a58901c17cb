/* Shared words of the serving runtime. Compiled into every pack together with its micro-kernels.
 *
 * An op is described by its axes, its operands and its plans; what is particular to a kind of operator is behind ht_kind.
 * Everything a call needs is constant data of the pack (ht_op) or lives on the caller's stack. */
#ifndef HT_H_
#define HT_H_

#include <stdatomic.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

#include "addressable.h"
#include "ht_limits.h"

#define HT_EXTENT_LIMIT 2147483647 /* also the tuner's limit; products of three extents stay inside 64 bits below it */
#define HT_STRIDE_LIMIT 1073741824 /* 2^30: times 2^31 rows and 4 bytes stays inside 64 bits */

#define HT_ELEMENTS_LIMIT ((int64_t)1 << 58) /* times the largest element stays inside 64 bits */

typedef int (*ht_kernel_fn)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

typedef struct {
  const char* name;
  int64_t extent;      /* 0: dynamic, known with each call */
  int64_t first, last; /* of a dynamic axis: tuned range */
} ht_axis;

enum { HT_AXIS_M = 0, HT_AXIS_N = 1, HT_AXIS_K = 2, HT_AXIS_G = 3 }; /* of a layer, in the op's axes; g: of a grouped one */
enum { HT_LAYER_OPERANDS = 3, HT_FIRST_EXTRA = 2 }; /* x, weight, what an epilogue reads, y */
enum { HT_INPUT = 0, HT_CONSTANT = 1, HT_OUTPUT = 2, HT_BESIDE = 3 }; /* beside: written, too, before the output in the order */

typedef struct { /* one tensor of an op; the output is the last one */
  const char* name;
  uint8_t role;       /* HT_INPUT and on */
  uint8_t code, bits; /* DLPack's element type */
  uint8_t rank;
  uint8_t axes[HT_MAX_AXES]; /* of each dimension, outermost first: an index of the op's axes */
  uint8_t compact;           /* contiguous as a whole; otherwise its inner stride is 1 and the others are free */
  uint8_t in_place;          /* the output may be this tensor itself: some kernel has read an element when it writes there */
} ht_operand;

typedef struct { /* shape -> cell. One axis of rows, or a grid over several dynamic axes; total: any shape has a cell */
  int32_t dims;
  uint8_t axis[HT_MAX_DYNAMIC];
  int32_t count[HT_MAX_DYNAMIC];          /* cells along each axis */
  const int32_t* bounds[HT_MAX_DYNAMIC];  /* the largest extent of each cell, ascending; NULL: cell i has extent i + 1 */
} ht_table;

typedef struct { /* one thread count */
  int32_t threads;
  ht_table table;
  const void* data; /* of the kind: what each cell says */
} ht_plan;

typedef struct { /* why a call was refused */
  const char* kind; /* "TypeError", "ValueError", "RuntimeError": Python's names */
  char text[256];
} ht_error;

typedef struct { /* a checked tensor, leading axes folded: extents and strides (in elements) of its operand's axes */
  char* data;
  int64_t extents[HT_MAX_AXES], strides[HT_MAX_AXES];
} ht_view;

typedef struct { /* what an epilogue reads beside the result: element (row, column) of the output meets this one; strides may be 0 */
  const float* data;
  int64_t row_stride, column_stride;
} ht_extra;

typedef struct { /* one checked dense call: row strides in elements. Of a typed op x, y and what is like y are of its types */
  const float* x;
  int64_t ldx;
  const float* w;
  float* y;
  int64_t ldy;
  int64_t m;
  const float* bias; /* n elements added to every row, or NULL */
  int32_t partial;   /* its sums are not whole: no bias and no epilogue follows them */
  int32_t extras;
  ht_extra extra[HT_MAX_EXTRA]; /* of the epilogue that the kernels have, in the order of its operands */
} ht_dense_call;

typedef struct { /* what the epilogue of a convolution reads: strides 0 along axes that it has not */
  const float* data;
  int64_t sb, sf, sh, sw;
} ht_conv_extra;

typedef struct { /* one checked convolution; strides in elements (kinds/conv.h) */
  const float *x, *weight, *bias; /* bias: of each feature, or NULL */
  int32_t extras;
  ht_conv_extra extra[HT_MAX_EXTRA]; /* of the epilogue that the kernels have, in the order of its operands */
  float* y;
  int64_t batch, h, w, p, q;
  int64_t xb, xc, xh, xw, yb, yf, yh, yw;
} ht_conv_call;

#define HT_BATCH_AXES (HT_MAX_AXES - 2)
typedef struct { /* one checked product. Of each operand's view, strides: of rows, of columns, then of each batch axis; data NULL: not given */
  ht_view views[HT_MAX_OPERANDS];
  int32_t batch_axes;
  int64_t batch[HT_BATCH_AXES]; /* extents, outermost first */
} ht_product_call;

typedef struct {
  int64_t extents[HT_MAX_AXES]; /* of the op's axes in this call */
  int empty;                    /* nothing that is written has an element: there is nothing to run */
  int32_t device;               /* of a kind that is queued, and that binds nothing: number of the tensors' device */
  uint32_t over;                /* a bit for each operand that the output is, too (ht_check) */
  union {
    ht_dense_call dense;
    ht_conv_call conv;
    ht_view views[HT_MAX_OPERANDS];
    ht_product_call product; /* begins with the views */
  };
} ht_call;

typedef struct ht_op ht_op;
struct ht_door_op;

typedef struct { /* where a call is queued, and what is said back */
  void* stream; /* of the device; NULL is its legacy default stream */
  int fallback; /* set: not what the plan says serves this call */
} ht_queue;

/* Of a kind whose calls are queued on a device's streams. Its weight stays where the caller has it; what is worked out once for a
 * weight lies in `bound`, memory of the host that the caller keeps, aligned to HT_BOUND_ALIGNMENT. */
#define HT_BOUND_ALIGNMENT 128
typedef struct {
  int (*open)(int device, ht_error* error); /* load the pack's code on a device, once for the process */
  int64_t (*bound_bytes)(const ht_op* op);
  /* Load what the device lacks, and fill `bound`; channels: what has one value a channel, in the op's order, NULL where there is none. */
  int (*bind)(const ht_op* op, const DLTensor* weight, const DLTensor* const* channels, int32_t count, void* bound, ht_error* error);
  /* Have memory ready that calls on this stream may want, so that none of them allocates. */
  int (*prepare)(const ht_op* op, const void* bound, void* stream, ht_error* error);
  /* Queue a call that was checked; its tensors are x, `bound` as bytes, out, and what the kind
   * wants behind it. Allocates nothing, waits for nothing. */
  int (*launch)(const ht_op* op, const ht_plan* plan, const ht_call* call, ht_queue* queue, ht_error* error);
  /* Lay out once what calls would lay out each time of a weight that was bound, which is not to change any more; NULL: there is nothing.
   * Waits for the device. Not while a stream is captured. */
  int (*keep)(const ht_op* op, void* bound, ht_error* error);
  void* (*kept)(const ht_op* op, const void* bound); /* that memory (cuda/weight_cache.h), or NULL */
} ht_placed;

typedef struct { /* what a kind of operator does; one file in kinds/ */
  const char* name;
  /* Check the tensors of a call, in the order of its operands (an optional one may be NULL); 0, or -1 with *error filled. */
  int (*check)(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error);
  /* Compute it; 0, or -1 when a micro-kernel refused its arguments. Allocates nothing. Not called for an empty output. */
  int (*run)(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads);
  const char* (*kernel_name)(const ht_op* op, int32_t index);
  /* Of a layer, called as (x, weight, out[, bias]) with the axes m, n, k; NULL of other kinds. The composition of m rows: count,
   * how it is shared, then kernel index and tiles of each region; and what a server must know of the op. */
  void (*look_up)(const ht_op* op, const ht_plan* plan, int64_t m, int64_t out[2 + 2 * HT_MAX_PARTS]);
  void (*describe)(const ht_op* op, struct ht_door_op* out);
  const ht_placed* placed; /* NULL: `run` computes before it returns */
  /* Of a kind whose weight is laid out here when it is bound: floats of the packed weight, and the work. NULL of other kinds. */
  int64_t (*packed_floats)(const ht_op* op);
  int (*pack)(const ht_op* op, const DLTensor* weight, float* packed, ht_error* error);
  /* The output's extents for these operands, as far as they go together (`check` says whether they do), and how many there are; 0 where
   * there are none. NULL: an output is always passed. */
  int (*sized)(const ht_op* op, const DLTensor* const* inputs, int64_t shape[HT_MAX_RANK]);
} ht_kind;

struct ht_op {
  const char* name;
  const ht_kind* kind;
  int32_t axis_count, operand_count, optional_count, plan_count, kernel_count; /* optional: operands behind the output */
  int32_t dynamic_count;
  uint8_t dynamic[HT_MAX_DYNAMIC]; /* the axes whose extent comes with a call */
  const ht_axis* axes;
  const ht_operand* operands;
  const ht_plan* plans;
  const void* data; /* of the kind */
};

/* The cell of a shape, row-major over the table's axes. Below the first cell and beyond the last it is the nearest one. */
static inline int64_t ht_look_up(const ht_table* table, const int64_t* extents) {
  int64_t cell = 0;
  for (int32_t i = 0; i < table->dims; ++i) {
    int64_t extent = extents[table->axis[i]], low = 0, high = table->count[i] - 1;
    if (table->bounds[i] == NULL) {
      low = extent < 1 ? 0 : extent - 1 > high ? high : extent - 1;
    } else {
      while (low < high) { /* the first cell that reaches the extent */
        int64_t middle = (low + high) / 2;
        if (table->bounds[i][middle] < extent) low = middle + 1;
        else high = middle;
      }
    }
    cell = cell * table->count[i] + low;
  }
  return cell;
}

/* check.c: what checks of all kinds share. */
__attribute__((format(printf, 3, 4))) int ht_refuse(ht_error* error, const char* kind, const char* format, ...);
int ht_check_type(const char* name, const DLTensor* t, int code, int bits, ht_error* error); /* device, dtype, rank, shape */
/* A tensor as an operand of `rank` axes: all axes before the last rank - 1 are folded into the first one, which needs them evenly
 * spaced. `expected`: the extent of each axis, 0 for any. The inner stride must be 1. */
typedef struct { /* where the elements of a tensor lie */
  uintptr_t data;
  int rank;
  int64_t bytes;                    /* of an element */
  const int64_t *extents, *strides; /* strides in elements */
} ht_layout;
/* Whether two tensors surely share no byte although their spans overlap, as columns of one buffer do. */
int ht_interleaved(const ht_layout* one, const ht_layout* other);
int ht_fold(const char* name, const DLTensor* t, int rank, const int64_t* expected, ht_view* view, ht_error* error);
int ht_check_addresses(const char* name, const DLTensor* t, ht_error* error); /* ht_addressable, or a refusal */
int ht_contiguous(const DLTensor* t); /* strides NULL or those of a contiguous tensor; an axis of one element may have any */
static inline char* ht_data(const DLTensor* t) { return (char*)((uintptr_t)t->data + t->byte_offset); } /* of an empty tensor it may wrap */
/* Tensors against the op's operands: rank, type, strides, one extent an axis, and an output that shares no memory. */
int ht_check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error);

/* pool.c: run body(arg, chunk) for every chunk, on the caller and at most threads-1 workers. The first len/threads
 * chunks belong to the caller, and so on; who is done takes from the others. Falls back to the caller alone when the
 * pool is busy or cannot start. Chunks must be independent. */
typedef void (*ht_pool_fn)(void (*body)(void* arg, int64_t chunk), void* arg, int64_t chunks, int threads);
void ht_pool_run(void (*body)(void* arg, int64_t chunk), void* arg, int64_t chunks, int threads);
int ht_pool_workers(void);          /* threads alive now, for tests */
/* GOMP_parallel or one like it: run fn(data) on `threads` threads at once, the caller among them. With a team the process's
 * OpenMP threads compute (NULL: our own pool again): two pools that spin on the same cores cost each other milliseconds. */
typedef void (*ht_team_fn)(void (*fn)(void* data), void* data, unsigned threads, unsigned flags);
void ht_pool_use_team(ht_team_fn team);
void ht_pool_inject(ht_pool_fn run); /* run parallel calls of every pack in the process on `run`; NULL: on our own pool */

#endif /* HT_H_ */
