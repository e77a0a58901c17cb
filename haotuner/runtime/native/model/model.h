/* A whole model of a pack: a schedule of steps over tensors whose extents follow from the request's dimensions.
 *
 * The schedule is a file of the pack (bytecode.h says how it is written), whose words outlive the model: names and extents are read
 * there. Reading it refuses whatever is not sound: an index beyond its table, a tensor read before it is made or made twice, a kernel
 * that the library has not, a group called with other tensors than its loops have. What belongs to the model lies in ht_model; what belongs to one call at a time in a context (run.c). */
#ifndef HT_MODEL_H_
#define HT_MODEL_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "ht_pack.h"
#include "loops.h"
#include "model/bytecode.h"

#define HT_MODEL_AXES 16                      /* of a tensor, at most */
#define HT_MODEL_ENDS 256                     /* inputs and outputs, at most */
#define HT_MODEL_WAYS 16                      /* of a model, at most */
#define HT_MODEL_CONTEXTS 256                 /* calls at once */
#define HT_MODEL_PLANS 8                      /* of different sizes that a context keeps */
#define HT_MODEL_EXTENT ((int64_t)1 << 40)    /* elements; what a shape comes to beyond it cannot be meant */
#define HT_MODEL_BYTES ((int64_t)1 << 46)     /* of one call */
#define HT_MODEL_ALIGNMENT 64
#define HT_MODEL_SCALED kDLOpaqueHandle /* element type of a weight that lies as bytes and numbers by which these are multiplied */

typedef struct {
  int32_t op, a, b; /* SIZE_DIM: a is a dimension; else lines before this one */
  int64_t number;
} ht_size_line;

typedef struct {
  const char* name;
  uint8_t code, bits; /* DLPack's element type */
  int32_t rank;
  const int64_t* shape; /* lines of the size table; extents of a weight */
  int64_t weight;       /* where it begins among the weights; -1: it is made by a call */
  int32_t root;         /* the tensor in whose memory it lies: itself, or what it is another shape of */
  int32_t external;     /* of a root: the caller's array it lies in, inputs before outputs; -1: none */
  int32_t slot;         /* of a root: its place among those in the arena; -1: it is not there */
  int32_t first, last;  /* of a root: the steps between which it is needed */
  int32_t cache;        /* of a root: 1 + which cache it is; 0: none */
} ht_model_tensor;

typedef struct {
  const char* name;
  int32_t tensor;
  int32_t direct; /* of an output: steps write it into the caller's array; else it is copied at the end */
  int32_t cache;  /* 1 + which cache it is; 0: none */
} ht_model_end;

typedef struct { /* a tensor as an op takes it: seen in another shape, its axes reordered */
  int32_t tensor;       /* -1: `number` */
  int32_t place;        /* among the tensors of the call; of what is bound from behind, where none is */
  int32_t bound;        /* on a device: 0, or 1 + its place among what is bound with the weight and not passed */
  int32_t rank;         /* of the shape; -1: as it is */
  const int64_t* shape; /* lines */
  const int64_t* order; /* axis i is axis order[i] of the shape; NULL: as they are */
  int32_t packed;       /* -1, or which packed weight it is */
  float number;
  int64_t first, width; /* elements of each row of the tensor, which alone it takes; width 0: all of them */
} ht_model_operand;

typedef struct {
  int32_t kind;         /* STEP_ALIAS and on */
  int32_t index;        /* of the op or of the group */
  int32_t first, count; /* its operands; of a group its tensors, the outputs last */
  int32_t given;        /* tensors of the op's call, those left out included; inputs of a segment */
  int32_t at;           /* its place among steps of its kind; of a loop or a side of a branch where it ends; a line */
  int32_t out;          /* the tensor it makes */
  int64_t setting; /* of an op's call; what a step's words say; of a loop its first stack */
  const char* called;   /* of a segment: the model's name; of what is required: words */
  const int64_t* more;  /* of random numbers, loops and choices: their words */
} ht_model_step;

typedef struct { /* the steps that serve requests of some sizes */
  int32_t line; /* of the size table; -1: requests of any sizes */
  int64_t most; /* that the line may be */
  int32_t first, end; /* its steps */
  int32_t first_fix, fix_end;
  ht_model_end* outputs;
} ht_model_way;

typedef struct { /* a weight as the op reads it: laid out anew, or bound on a device with what its epilogue reads of channels */
  int32_t op, tensor, bound_count, bound[HT_MAX_EXTRA]; /* bound: tensors */
  void* data;
  int64_t shape[3];
  int32_t rank;
  uint8_t code, bits;
} ht_model_packed;

typedef struct { /* where a caller's address goes */
  int32_t loops; /* else an operand */
  int32_t at, external;
} ht_model_fix;

typedef struct { /* whole numbers among the inputs that choose rows */
  int32_t input, line, first, rank; /* line: how many rows there are; first: the line of the first element that is an index */
  const int64_t* axes;       /* of each the lines of its extent and its stride */
  const char* reader;
} ht_model_indices;

typedef struct { /* past and present keys, say: an input and the output that it is the first rows of, which may be one buffer */
  int32_t input, output, axis;
} ht_model_cache;

typedef struct { /* what a request must be */
  int32_t line; /* not 0 */
  const char* words;
} ht_model_required;

typedef struct { /* what a caller may pass where it leaves an input out */
  int32_t input, rank;
  const int64_t *shape, *elements;
} ht_model_default;

typedef struct { /* of the thread count that is nearest to the model's */
  int32_t threads;
  double low, high;      /* of the band, times the expected time */
  const int64_t* nodes;  /* of each dimension how many, and the sizes */
  const int64_t* us;     /* bits of doubles, the last dimension innermost; NULL: the pack says none */
} ht_model_expected_times;

typedef struct ht_model_context ht_model_context;

typedef struct ht_loaded_model {
  const char* name;
  int threads; /* on a device as a call's setting has it: 1, or 2 where plans were made for another one */
  int32_t device; /* its number, of those of backend.h's kind */
  int32_t dim_count, size_count, equal_count, tensor_count, input_count, output_count, way_count, step_count;
  int32_t operand_count, loop_count, op_steps, fix_count, packed_count, index_count, required_count, check_count, default_count;
  int32_t cache_count, capacity; /* capacity: the line of the size table that holds it; -1: none */
  int32_t chained, segment_count; /* whether it is a chain: steps are segments and what lies between */
  int32_t stack_count;               /* of all loops of a chain */
  struct ht_loaded_model** segments; /* the caller's, given once they are open */
  int32_t axes; /* of all operands together */
  int64_t weights_bytes;
  const int64_t* checks; /* CRC-32 of each HT_MODEL_CHUNK of the weights */
  atomic_char* compared; /* while the model is opened: which of them were compared; NULL: none is to be */
  atomic_llong damaged;  /* a chunk that has another one; -1: none */
  _Atomic int64_t most_bytes; /* of a request: working memory and outputs; 0: no bound */
  const char** dims;
  ht_size_line* sizes;
  int32_t* equal; /* pairs */
  ht_model_indices* indices;
  ht_model_required* required;
  ht_model_cache* caches;
  ht_model_default* defaults;
  ht_model_expected_times expected;
  ht_model_tensor* tensors;
  ht_model_end *inputs, *outputs; /* outputs: of the first way, then of the others */
  ht_model_way* ways;
  ht_model_step* steps;
  ht_model_operand* operands;
  int32_t* loops; /* tensors of groups, one group after the other */
  ht_model_fix* fixes;
  ht_model_packed* packed;
  /* The arena: roots in it, and of each those that are needed when it is. */
  int32_t slot_count, most_beside;
  int32_t *slots, *beside_at, *beside;
  const char* weights; /* mapped */
  const char* base;    /* where steps read them: there, or on a device */
  char* packed_block;
  size_t packed_bytes, weights_mapped;
  void* there; /* what backend.h's side keeps of the model */
  struct {
    _Atomic(ht_model_context*) context;
    atomic_int busy;
  } places[HT_MODEL_CONTEXTS];
  atomic_llong calls, plans_made;
} ht_model;

/* read.c: the tables of a schedule; 0, or -1 with *error filled. `model` is zero before, and freed by ht_model_clear after either. */
int ht_model_read(ht_model* model, const int64_t* words, int64_t count, ht_error* error);
void ht_model_clear(ht_model* model);

/* liveness.c: where each tensor lies (arena, caller's array, weights), how long it is needed, and which are needed together. */
int ht_model_live(ht_model* model, ht_error* error);

/* weights.c: map the weights of an open file. `check`: whether they are compared with their checksums, not their size alone. */
int ht_model_weights(ht_model* model, int file, int check, ht_error* error);
void ht_model_compare(ht_model* model, int64_t first, int64_t end); /* these bytes, which the caller reads next, while they come through the caches */
int ht_model_compared(ht_model* model, ht_error* error); /* all that is left; 0, or -1 where any byte is damaged */

/* sizes.c */
int ht_model_dims(const ht_model* model, const DLTensor* inputs, int64_t* dims, ht_error* error); /* of a request; checks its inputs */
int ht_model_given(const ht_model* model, const DLTensor* inputs, int64_t* dims, ht_error* error); /* the same, -1 of what no input says */
int ht_model_sizes(const ht_model* model, const int64_t* dims, int64_t* sizes, ht_error* error);
/* Whether all indices among the inputs lie in -n..n-1; on the host, of inputs that ht_model_dims found right. */
int ht_model_indices_in(const ht_model* model, const DLTensor* inputs, const int64_t* sizes, ht_error* error);
int ht_size_value(const ht_size_line* line, const int64_t* dims, const int64_t* sizes, int64_t* out); /* other than 0: it has none */
int ht_model_extents(const ht_model* model, const ht_model_tensor* t, const int64_t* sizes, int64_t* out, int64_t* count, ht_error* error);
void ht_model_words(const ht_model* model, const ht_model_tensor* t, char* text, size_t room); /* a shape: "(batch, seq, 32)" */

/* cache.c: buffers of caches. `dims` have their capacity behind the request's dimensions; 0: as many rows as there are. */
int ht_cache_capacities(const ht_model* model, const DLTensor* outputs, int64_t* dims, ht_error* error); /* by the strides of the outputs */
int ht_cache_lies(const DLTensor* t, int32_t axis, int64_t* capacity); /* whether rows lie as in a buffer, and in which; 0: no axis tells */
int ht_cache_shared(const ht_model* model, int32_t input, int32_t output, const DLTensor* inputs, const DLTensor* outputs); /* whether both are one buffer */
/* Strides of a shape of so many elements of a cache in a buffer. 0; -1: they are not evenly spaced. */
int ht_cache_strides(const ht_model* model, const ht_model_tensor* root, const int64_t* sizes, int32_t rank, const int64_t* shape, int64_t* strides);

/* The way that serves a request of these sizes. */
const ht_model_way* ht_model_way_of(const ht_model* model, const int64_t* sizes);

/* memory_planner.c: offsets in the arena of every root of a way's steps there, and the arena's bytes. `scratch`: ht_model_scratch(model) words. */
int64_t ht_model_place(const ht_model* model, const ht_model_way* way, const int64_t* sizes, int64_t* offsets, int64_t* scratch);
int64_t ht_model_scratch(const ht_model* model);

/* plan.c: the calls of a request of these sizes, with tensors at these offsets of the arena. One block of ht_plan_bytes(model). */
typedef struct {
  int64_t used;             /* when it was wanted last; 0: it is empty */
  int64_t need, bytes;      /* bytes of the arena; of it and the outputs */
  int64_t *dims, *sizes;
  const ht_model_way* way;
  DLTensor* tensors;        /* one an operand */
  int64_t* extents;         /* shapes and strides of those */
  const DLTensor** given;   /* HT_MAX_OPERANDS a step that calls an op */
  void** loops;             /* addresses, as the groups take them */
  char* skipped;            /* a step whose result has no elements */
  char** results;           /* of each output: where it lies before it is copied; NULL of direct ones */
} ht_model_plan;

/* cache.c: the rows of a call behind those that are there. */
int ht_cache_append(const ht_model* model, const ht_model_plan* plan, const ht_model_step* step, ht_error* error);

size_t ht_plan_bytes(const ht_model* model);
void ht_plan_lay(const ht_model* model, ht_model_plan* plan, void* block);
int ht_plan_fill(const ht_model* model, ht_model_plan* plan, char* arena, const int64_t* offsets, ht_error* error);

/* run.c. `inputs` and `outputs`: one tensor each, in the model's order; contiguous. */
enum { HT_MODEL_FACTS = 5 };
/* `words` outlive the model. */
ht_model* ht_model_open(const int64_t* words, int64_t count, int file, int check, int device, int threads, ht_error* error); /* NULL with *error filled */
void ht_model_close(ht_model* model); /* no call runs any more */
/* Microseconds that a request of these dimensions is expected to take: the lower end of a band, the expected time, the upper end. */
int ht_model_expected(const ht_model* model, const int64_t* dims, double us[3], ht_error* error);
int ht_model_memory(ht_model* model, const int64_t* dims, int64_t* bytes, ht_error* error); /* of the arena, before a run */
/* Refuse later requests whose working memory and outputs take more bytes, before any is allocated; 0: none. */
void ht_model_limit(ht_model* model, int64_t most_bytes);
int ht_model_within(const ht_model* model, int64_t bytes, ht_error* error); /* 0, or -1 with *error filled */
int ht_model_need(ht_model* model, const DLTensor* inputs, int64_t* bytes, ht_error* error); /* of the arena, of a request */
int ht_model_shapes(ht_model* model, const DLTensor* inputs, int64_t* shapes, ht_error* error); /* of all outputs, one after the other */
/* Whether a tensor is where, as and contiguous as an output is wanted. */
int ht_model_fits(const ht_model* model, int32_t output, const DLTensor* wanted, const DLTensor* given, ht_error* error);
/* `stream`: of the device, on which all is queued; NULL on the host. */
int ht_model_run(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, void* stream, ht_error* error);
/* The same with outputs that are made once the sizes of the request are known; NULL with *error filled: there are none. */
typedef struct {
  const DLTensor* (*of)(void* arg, const int64_t* sizes, ht_error* error);
  void* arg;
} ht_model_outputs;
int ht_model_run_into(ht_model* model, const DLTensor* inputs, const ht_model_outputs* made, void* stream, ht_error* error);
/* As ht_model_run on the device's legacy stream; `ns`: NULL, or an element a step for the nanoseconds that it took, 0 of steps that had nothing to do or are of another way. */
int ht_model_times(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, int64_t* ns, ht_error* error);

/* chain.c. Where an output is to lie, told once its shape is known: the address of contiguous memory; NULL: there is none. */
typedef void* (*ht_model_place_fn)(void* arg, int output, const DLTensor* wanted);
/* Any model, its outputs where `place` says. `seed`: of a chain's random numbers; NULL: other ones each time. `stream`: as of ht_model_run, but a
 * chain waits for it wherever the host reads what tells a size. `dims`: NULL, or gets those of the request. */
int ht_model_run_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg, void* stream, int64_t* dims,
                        ht_error* error);
const char* ht_chain_segment(ht_model* model, int index, ht_model* given); /* its name, NULL beyond the last; `given`: NULL, or that model, open */
int ht_chain_memory(ht_model* model, const int64_t* dims, int64_t* bytes, ht_error* error);

void ht_model_held(ht_model* model, int64_t out[HT_MODEL_FACTS]); /* calls, plans made, contexts, bytes of their arenas, of packed weights */
void ht_model_trim(ht_model* model); /* give back the memory of contexts that are not in use */

#endif /* HT_MODEL_H_ */
