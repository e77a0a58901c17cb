/* The door of a pack's models, for Python (haotuner/runtime/native_library.py) and for the C library (clib/model.c): one function that
 * gives a table of functions. A pack without models has no such symbol. */
#ifndef HT_MODEL_ENTRY_H_
#define HT_MODEL_ENTRY_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define HT_MODEL_DOOR_VERSION 2 /* moves with any change below */
#define HT_MODEL_DOOR_COMPILED 1 /* of packs made before: schedules are constants of the library, and models are opened by index */
#define HT_MODEL_DOOR_SYMBOL "ht_pack_models"
#define HT_MODEL_DOOR_AXES 16

typedef struct {
  const char* name; /* NULL: there is no such input or output */
  int32_t code, bits, rank; /* DLPack's element type */
  int64_t extents[HT_MODEL_DOOR_AXES]; /* -1: a dimension, or what follows from dimensions */
  const char* dims[HT_MODEL_DOOR_AXES]; /* the dimension's name; NULL: a number, or what follows */
} ht_model_facts;

struct ht_loaded_model;

/* What can fail returns 0, or -1 with *kind = "TypeError", "ValueError" or "RuntimeError" and a text of at most `size` bytes. */
typedef struct {
  int32_t version;
  int32_t compiled; /* schedules that lie in the library, of version 1; else 0 */
  const int64_t* (*compiled_words)(int index, int64_t* count); /* one of these; else NULL */
  /* `words`: a model's schedule (bytecode.h), `count` of them, which outlive the model. `weights`: an open file, which may be closed behind the call.
   * `check`: whether the weights are compared with their checksums, not their size alone. `device`: 0 on a CPU; else its number, and `threads` is 1, or
   * 2 where plans were made for another device. Of version 1 it is an ht_model_open_compiled. */
  int (*open)(const int64_t* words, int64_t count, int weights, int check, int device, int threads, struct ht_loaded_model** out, const char** kind, char* text,
              size_t size);
  void (*close)(struct ht_loaded_model* model);
  const char* (*name)(const struct ht_loaded_model* model);
  const char* (*dim)(const struct ht_loaded_model* model, int index); /* NULL beyond the last */
  void (*end)(const struct ht_loaded_model* model, int output, int index, ht_model_facts* out);
  int (*memory)(struct ht_loaded_model* model, const int64_t* dims, int64_t* bytes, const char** kind, char* text, size_t size);
  int (*shapes)(struct ht_loaded_model* model, const DLTensor* inputs, int64_t* shapes, const char** kind, char* text, size_t size);
  int (*run)(struct ht_loaded_model* model, const DLTensor* inputs, const DLTensor* outputs, const char** kind, char* text, size_t size);
  void (*held)(struct ht_loaded_model* model, int64_t out[5]); /* calls, plans made, contexts, bytes of their arenas, of packed weights */
  void (*trim)(struct ht_loaded_model* model);
} ht_model_door;

typedef int (*ht_model_open_compiled)(int index, int weights, int threads, struct ht_loaded_model** out, const char** kind, char* text, size_t size);

/* Any model, its outputs where `place` says once their shapes are known (NULL: it has no memory); of a chain, whose sizes depend on data,
 * the only call. `seed`: of its random numbers, NULL: others each time. `dims`: NULL, or gets the request's dimensions. */
#define HT_MODEL_PLACED_SYMBOL "ht_pack_model_run_placed"
typedef void* (*ht_model_placing)(void* arg, int output, const DLTensor* wanted);

/* Name of a chain's segment, a model of the same pack; NULL beyond the last, and of other models. `given`: NULL, or that model, open,
 * which the chain then calls and which must outlive it. */
#define HT_MODEL_SEGMENT_SYMBOL "ht_pack_model_segment"

/* Elements of an input that a call may leave out, which the caller then passes, with its shape; NULL: the input must be there. They live
 * as long as the library. */
#define HT_MODEL_DEFAULT_SYMBOL "ht_pack_model_default"

/* As `run`, of numpy's arrays where they lie (arrays.c), `arrays`: addresses of the objects, inputs first. One more answer: 1 where an array
 * must be handed over as a tensor, for it is of another type or order, or there are too many. The caller has compared some first (agrees). */
#define HT_MODEL_ARRAYS_SYMBOL "ht_pack_model_run_arrays"
#define HT_MODEL_ARRAYS_AGREE_SYMBOL "ht_pack_model_arrays_agree"
typedef struct {
  struct ht_loaded_model* model;
  const char** kind;
  char* text;
  size_t size;
  int64_t arrays[];
} ht_model_arrays;

/* Later requests of this model that take more bytes of working memory and outputs are refused; 0: none. */
#define HT_MODEL_LIMIT_SYMBOL "ht_pack_model_limit"

/* Microseconds that a request is expected to take: of a band the lower end, the expected time, the upper end. Nothing is run or allocated. */
#define HT_MODEL_EXPECTED_SYMBOL "ht_pack_model_expected"

/* Of version 1 and a pack on a device: as ht_model_open_compiled, with `device` before `threads`. */
#define HT_MODEL_OPEN_COMPILED_ON_SYMBOL "ht_pack_model_open_on"

/* Of a pack on a device: as `run`, all queued on `stream`, and nothing is waited for; tensors of the device. */
#define HT_MODEL_QUEUE_SYMBOL "ht_pack_model_queue"
/* As the call of HT_MODEL_PLACED_SYMBOL, `stream` ahead of `dims`: outputs lie on the device. */
#define HT_MODEL_QUEUE_PLACED_SYMBOL "ht_pack_model_queue_placed"

#endif /* HT_MODEL_ENTRY_H_ */
