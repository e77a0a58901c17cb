/* One call of a chain: what its steps share (chain.c, loop_exec.c). */
#ifndef HT_MODEL_CHAIN_H_
#define HT_MODEL_CHAIN_H_

#include "model/backend.h"

#define HT_CHAIN_EXTERNAL (-1) /* offset of what does not lie in the arena */
#define HT_CHAIN_DEEPEST 32    /* loops inside loops */
#define HT_CHAIN_PIECES 48     /* of a stack of unknown height */
#define HT_CHAIN_UNKNOWN INT64_MIN /* a size whose dimension the data have not told yet, or that a side of a branch has which is not taken */

typedef struct { /* `bytes` of a row, and where in the arena each piece lies; of a carried value its room, and where it lies */
  int64_t bytes, pieces[HT_CHAIN_PIECES];
} ht_chain_stack;

typedef struct {
  ht_model* m;
  ht_model_context* c;
  const ht_model_queue* q;
  void* (*place)(void* arg, int output, const DLTensor* wanted);
  void* arg;
  ht_error* error;
  DLTensor *tensors, *given, *made; /* tensors: by their number */
  void** placed;                    /* of outputs */
  char* asked;
  ht_chain_stack* stacks; /* of all loops: their stacks, then the carried values whose sizes change */
  int64_t* shapes;
  int64_t used; /* bytes of the arena */
  int64_t given_out, *theirs; /* bytes of outputs, and of each segment's own arena where requests are bounded */
  uint64_t seed;
} ht_chain_call;

/* All steps from one to before another; 0, or -1 with *error filled; so all below. */
int ht_chain_steps(ht_chain_call* k, int32_t first, int32_t end);
/* A dimension is known now, and sizes that follow from it. */
int ht_chain_told(ht_chain_call* k, int32_t dim, int64_t size);
/* Room for a tensor: where the caller wants it if it is an output, else in the arena. */
int ht_chain_make(ht_chain_call* k, int32_t tensor);
int ht_chain_grow(ht_chain_call* k); /* the arena, to what was made */
DLTensor* ht_chain_at(ht_chain_call* k, int32_t tensor); /* as it lies now; the arena may move when it grows */
int64_t ht_chain_bytes(const DLTensor* t);
int ht_chain_copy(ht_chain_call* k, void* to, const void* from, int64_t bytes);

/* So many elements of a tensor as the host sees them, the first of them at the begin of *out's data, until the next are seen. */
int ht_chain_seen(ht_chain_call* k, int32_t tensor, int64_t first, int64_t count, DLTensor* out);
/* One whole number; refused in `words` where there is no such element. */
int ht_chain_element(ht_chain_call* k, int32_t tensor, int64_t place, const char* words, int64_t* out);
/* A tensor with the data where the host makes them, which are then sent where they belong. */
int ht_chain_making(ht_chain_call* k, int32_t tensor, DLTensor* out);
int ht_chain_send(ht_chain_call* k, int32_t tensor);
int ht_chain_range(ht_chain_call* k, int32_t tensor, int64_t count); /* 0, 1, ... */

/* Whether steps have made a tensor in this call: none of the side of a branch that is not taken. */
int ht_chain_there(const ht_chain_call* k, int32_t tensor);
int ht_chain_damaged(ht_chain_call* k); /* -1: the schedule is unsound */

/* branches.c */
int ht_chain_decided(ht_chain_call* k, const ht_model_step* step);
int ht_chain_chosen(ht_chain_call* k, const ht_model_step* step);
int ht_chain_required(ht_chain_call* k, const ht_model_step* step);

/* loop_exec.c: a loop's words, behind its kind. */
typedef struct {
  int32_t limit, asked, turn, goes_on, dim, turns; /* tensors, -1: none; dim: a dimension */
  int32_t carried, rows, made, changes;            /* how many */
  const int64_t* carried_ends;                     /* of each: the first value, that of a turn, what the turn makes of it, the last or -1 */
  const int64_t *row_ends, *made_ends;             /* a tensor and its row of a turn; a row that a turn makes and the stack of all */
  const int64_t* changed;                          /* a carried value, its axis, the dimension of a turn, that of the last value or -1 */
} ht_chain_loop;

ht_chain_loop ht_chain_loop_of(const ht_model_step* step);
int ht_chain_turns(ht_chain_call* k, const ht_model_step* step, int32_t first);

#endif /* HT_MODEL_CHAIN_H_ */
