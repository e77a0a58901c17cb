/* Every kind of operator without loops of its own: one kernel computes any extents, and threads share slices of one axis. */
#ifndef HT_SLICED_H_
#define HT_SLICED_H_

#include "ht.h"

#define HT_WHOLE 255 /* no axis is cut */

/* How results of slices of a folded axis become one; HT_JOIN_MEAN: by the slices' shares of the axis. */
enum { HT_JOIN_NONE, HT_JOIN_SUM, HT_JOIN_MAX, HT_JOIN_MIN, HT_JOIN_PROD, HT_JOIN_MEAN };

typedef struct { /* fn(NULL, {DLTensor* of each operand, the output last}, operands, &result) computes what the tensors span */
  const char* name;
  ht_kernel_fn fn;
  int32_t tile[HT_MAX_AXES]; /* by axis: a slice begins at a multiple */
  uint8_t join[HT_MAX_AXES]; /* by axis: how results of slices of an axis that is folded are joined; 0: no such axis */
  uint32_t in_place;         /* a bit for each operand that the output may be, too */
  /* Rows whose folds are read again, cut along an axis: fn takes (…, workspace, stage, part, parts) then, and
   * computes the operands as one where parts is 0. Every stage waits for all parts of the one before. */
  uint8_t stages; /* 0: fn takes the operands alone */
  uint8_t along;  /* the axis */
  uint8_t rows;   /* the axis that threads share where the workspace is too small; HT_WHOLE: none */
  uint16_t left;  /* floats that a part leaves of a row */
  uint16_t parts;
  uint32_t row; /* elements of the output that are a row; 0: those along the axis */
} ht_sliced_kernel;

typedef struct { /* what serves the shapes of one cell */
  uint8_t kernel;
  uint8_t axis;   /* the axis that threads share, of the op's axes; HT_WHOLE: one thread computes all */
  uint16_t least; /* tiles of a slice at least */
} ht_sliced_entry;

typedef struct {
  const ht_sliced_kernel* kernels;
  int32_t over; /* the kernel that allows every operand which is in_place; it serves a call whose cell's kernel does not */
} ht_sliced;

extern const ht_kind ht_sliced_kind;

#endif /* HT_SLICED_H_ */
