/* Where a model runs. A pack links one side: host.c, whose steps compute before they return, or cuda/model.c, whose steps are queued on
 * a stream of a GPU. All else of a model is the same there: sizes, plans, offsets, the order of steps. */
#ifndef HT_MODEL_WHERE_H_
#define HT_MODEL_WHERE_H_

#include "model/model.h"

typedef struct {
  char* data;
  size_t bytes;
} ht_model_bytes;

struct ht_model_context {
  char* arena; /* begins at a cache line; NULL: none yet */
  size_t arena_bytes;
  void* block; /* of the host: the mapping that it lies in */
  size_t block_bytes;
  /* Of a device: whose calls it serves, for work that was queued may still use its arena. Captured: a graph may replay it at any time. */
  void* stream;
  const void* thread; /* of a stream that each thread has for itself */
  int captured;
  int64_t tick;
  int64_t calls, recent; /* of the present window, and the largest arena that one of them needed: see ht_context_rest */
  int64_t *dims, *sizes, *offsets, *scratch; /* of the request that comes in */
  void* words;
  ht_model_plan plans[HT_MODEL_PLANS];
  void* blocks[HT_MODEL_PLANS];
  /* Of a chain on a device, memory of the host: what was read of the device, and what is on its way there where `sending` is set. */
  ht_model_bytes seen, sent;
  int sending;
};

typedef struct ht_model_queue { /* of one call */
  void* stream;
  const void* thread;
  int capturing; /* into a graph: nothing may be allocated or waited for */
} ht_model_queue;

/* run.c: a context that nobody uses and that suits the call, from *place on; NULL with *error filled. It is the caller's until given back. */
ht_model_context* ht_context_take(ht_model* model, int* place, const ht_model_queue* queue, ht_error* error);
/* A call that needed so many bytes of its arena has ended: the arena goes where it is much larger than what came lately. */
void ht_context_rest(ht_model* model, ht_model_context* context, int64_t need);
void ht_context_give_back(ht_model* model, int place);

extern const DLDeviceType ht_where_type; /* of all tensors of a call */

/* Open the model there, its schedule read and its weights mapped: m->base, m->packed. 0, or -1 with *error filled; so all below. */
int ht_where_open(ht_model* model, ht_error* error);
void ht_where_close(ht_model* model); /* behind the contexts */

/* What a call on this stream is. */
int ht_where_queue(const ht_model* model, void* stream, ht_model_queue* out, ht_error* error);
/* Whether a context may serve it, and what a new one must know. */
int ht_where_suits(const ht_model_context* context, const ht_model_queue* queue);
int ht_where_begin(const ht_model* model, ht_model_context* context, const ht_model_queue* queue, ht_error* error);

/* What an arena for so many bytes holds. */
int64_t ht_where_holds(int64_t need);
/* An arena of so many bytes at least; what was in it is lost, but not on the host. Plans are void where it moved. */
int ht_where_grow(const ht_model* model, ht_model_context* context, int64_t need, const ht_model_queue* queue, ht_error* error);
/* The same, and what was in it is kept. Refused, it is as it was. */
int ht_where_extend(const ht_model* model, ht_model_context* context, int64_t need, const ht_model_queue* queue, ht_error* error);
void ht_where_drop(const ht_model* model, ht_model_context* context); /* give the arena back, which no work uses once it is done */

int ht_where_group(const ht_model* model, const ht_model_plan* plan, const ht_model_step* step, void* stream, ht_error* error);
int ht_where_copy(const ht_model* model, void* to, const void* from, int64_t bytes, void* stream, ht_error* error);

/* What a chain's host does with tensors, all of them in the order of the stream. */
/* Where the host reads these bytes, after what makes them: until the next such call, or till the arena grows. NULL with *error filled. */
const void* ht_where_seen(const ht_model* model, ht_model_context* context, const void* from, int64_t bytes, const ht_model_queue* queue, ht_error* error);
/* Where the host makes so many bytes, above 0, that are to lie at `to`; then they go there. NULL with *error filled. */
void* ht_where_room(const ht_model* model, ht_model_context* context, void* to, int64_t bytes, const ht_model_queue* queue, ht_error* error);
int ht_where_send(const ht_model* model, ht_model_context* context, void* to, int64_t bytes, const ht_model_queue* queue, ht_error* error);
int ht_where_number(const ht_model* model, int64_t* to, int64_t number, const ht_model_queue* queue, ht_error* error);

int ht_where_wait(const ht_model* model, void* stream, ht_error* error); /* until it is done: for who times */

#endif /* HT_MODEL_WHERE_H_ */
