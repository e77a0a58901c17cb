/* haotuner.h: open a pack and call its ops from C99 or C++, without Python and without TVM.
 *
 * A pack is code: its library runs in the server's process with all its rights. Hashes find damage, not malice, so open only
 * packs that you would run as a program.
 *
 * Every function may be called from any number of threads at once, except that nothing may use a handle while or after
 * it is freed. Functions that can fail return HT_OK or a negative code and fill *error (which may be NULL). Nothing here
 * throws, aborts, prints or exits. */
#ifndef HAOTUNER_H_
#define HAOTUNER_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define HT_ABI_VERSION 1 /* functions were added since; none changed */

typedef enum {
  HT_OK = 0,
  HT_BAD_TYPE = -1,     /* a tensor has another dtype or is no tensor */
  HT_BAD_VALUE = -2,    /* a tensor has another shape, stride or device, or shares memory with the output */
  HT_PACK_INVALID = -3, /* files are missing or changed; none of the pack's code was run, unless its library lacks a function */
  HT_PACK_MISMATCH = -4, /* a sound pack that this CPU cannot serve */
  HT_CLOSED = -5,       /* the pack was closed */
  HT_NO_MEMORY = -6,
  HT_INTERNAL = -7,     /* the pack is damaged in a way that hashes cannot show; on a device also an error of its driver */
  HT_NO_DEVICE = -8     /* no such device, or no driver */
} ht_status;

typedef struct {
  ht_status code;
  char text[400]; /* what was asked, what was found, what to do next */
} ht_error;

typedef struct ht_pack ht_pack;
typedef struct ht_op ht_op;         /* lives as long as its pack is open or one of its linears exists */
typedef struct ht_linear ht_linear; /* an op with a weight */
typedef struct ht_model ht_model;   /* a whole model */

typedef struct {
  int64_t calls;
  int64_t fallbacks;    /* calls with a thread count that was not tuned; on a device those that are not served as planned for it */
  int64_t out_of_range; /* shapes outside the tuned range; served by the nearest plan */
} ht_counts_t;

/* Version of this library; equal to HT_ABI_VERSION when header and library fit together. */
int ht_abi_version(void);

/* Open a pack directory after checking its hash, its format and this CPU; threads >= 1 is the most a call may use. */
ht_status ht_pack_open(const char* path, int threads, ht_pack** out, ht_error* error);

/* Open a pack for CUDA device number `device`, as CUDA counts them, and load its code there: once for the process, for captured
 * graphs may replay it after the pack was closed. */
ht_status ht_pack_open_on(const char* path, int device, ht_pack** out, ht_error* error);

/* Close: later calls return HT_CLOSED, calls that run finish. The library is unmapped with the last linear. */
void ht_pack_close(ht_pack* pack);

int ht_op_count(const ht_pack* pack);
const char* ht_op_name(const ht_pack* pack, int index); /* NULL beyond the last */
ht_status ht_op_find(ht_pack* pack, const char* name, ht_op** out, ht_error* error);

/* Pack a weight (n, k) of the op's type (float32, bfloat16, float16, int8), any strides, and copy an optional float32 bias (n). The tensors may be freed afterwards.
 * On a device: a compact weight and bias of the op's dtype there (of a grouped op (g, n, k) and (g, n)), which are not copied and must outlive the linear, what was queued
 * with it, and every graph that captured a call. Not while a stream is captured. */
ht_status ht_bind(ht_op* op, const DLTensor* weight, const DLTensor* bias, ht_linear** out, ht_error* error);
/* Of a convolution: a contiguous weight as torch stores it, (f, c/groups, r, s), transposed (c, f/groups, r, s); ht_call then takes
 * images in the layout of the op, and out as large as the convolution makes them. */
void ht_linear_free(ht_linear* linear);

/* As ht_bind, of an op with an epilogue: `constants` are what it reads with one value a channel, float32 (n), in the order of its steps:
 * bias, scale, low and high of a clamp. They are copied. On a device they are of the op's type, of a grouped op (g, n), and stay the caller's. */
ht_status ht_bind_fused(ht_op* op, const DLTensor* weight, const DLTensor* const* constants, int count, ht_linear** out, ht_error* error);

/* As ht_call; `inputs` are what the epilogue reads like out (the residual), apart from it, of its shape and, where that is no integer,
 * of its type, else float32. On a device its rows are as far apart as those of out, and it may be out itself. */
ht_status ht_call_fused(const ht_linear* linear, const DLTensor* x, const DLTensor* const* inputs, int count, const DLTensor* out,
                        void* stream, ht_error* error);

/* out (..., n) = x (..., k) . weight^T + bias. Rows evenly spaced, inner stride 1, out apart from x. Allocates nothing.
 * A CPU pack computes before it returns and wants NULL for `stream`. On a device the call is queued on `stream`, a CUstream or
 * cudaStream_t of the device's primary context (NULL: its legacy default stream), and nothing is waited for or loaded: it may be
 * captured in a graph. x and out must live until it was computed. */
ht_status ht_call(const ht_linear* linear, const DLTensor* x, const DLTensor* out, void* stream, ht_error* error);

/* Of a grouped op, on a device: as ht_call, each group of rows with its own matrix, in one launch. `offsets`: int32 (g) there, the row
 * where each group ends, ascending; read when the call runs. Rows behind the last end are not written. */
ht_status ht_call_grouped(const ht_linear* linear, const DLTensor* x, const DLTensor* offsets, const DLTensor* out, void* stream,
                          ht_error* error);

/* On a device: have memory ready for calls on this stream, so that they may split the sum over k where that was planned; without it
 * they are computed unsplit, and counted as fallbacks. It stays for the process. Not while a stream is captured. On a CPU: nothing.
 * Memory goes by the stream's handle: destroy a stream once its calls are done, for the next one may get the same handle. */
ht_status ht_prepare(const ht_linear* linear, void* stream, ht_error* error);

/* The same with another thread count for this call. */
ht_status ht_call_threads(const ht_linear* linear, const DLTensor* x, const DLTensor* out, void* stream, int threads,
                          ht_error* error);

/* Compute an op of another kind than dense, which binds no weight: its operands in the op's order, the output last. Any thread
 * may call; nothing may call while or after the pack is closed. Allocates nothing.
 * Generated ops (softmax, norms, groups from files …) take tensors whose last axis is contiguous, on a device all of them there, in one
 * launch on `stream`. The output may be the very tensor of an input that the manifest calls in_place. What the manifest calls
 * beside is written by the same call; it comes before the output, and no memory of what is written may be another operand's.
 * batch_matmul takes x, w, y and after them, each NULL or left out where it is not wanted, bias, scale and mask:
 * y = (x . w) * scale + bias + mask. Matrices are the last two axes; those before count them and are broadcast, at any strides.
 * On a device the last axis of x, w and y is contiguous, bias and mask are of their type, scale is float32 there, or one float32 of the
 * host, which is read before this returns; and the call is queued on `stream`. On a CPU that is NULL. */
ht_status ht_run(ht_op* op, const DLTensor* const* operands, int count, void* stream, ht_error* error);

/* On a device: have memory ready for ht_run on this stream, so that blocks may share few long rows, or the keys of few queries, where
 * that was planned; without it each row is one block's. It stays for the process. Not while a stream is captured. On a CPU: nothing. */
ht_status ht_op_prepare(ht_op* op, void* stream, ht_error* error);

/* Whole models. Their weights are mapped read-only from the pack's folder, which all processes share; what their ops read is packed
 * once when a model is opened. On a device they are copied there then: not while a stream is captured. Names live as long as the model, those of ht_model_name as long as the pack is open. */
#define HT_MODEL_MAX_AXES 16
typedef struct {
  const char* name;
  DLDataType dtype;
  int ndim;
  int64_t extents[HT_MODEL_MAX_AXES]; /* -1: a dimension of the request, or what follows from dimensions */
  const char* dims[HT_MODEL_MAX_AXES]; /* the dimension's name; NULL: a number, or what follows */
} ht_model_end;

typedef struct {
  int64_t calls, plans; /* plans: made for sizes that a context had not, or no longer */
  int64_t contexts, arena_bytes, packed_bytes; /* held; a context serves one call at a time */
} ht_model_held_t;

int ht_model_count(const ht_pack* pack);
const char* ht_model_name(const ht_pack* pack, int index); /* NULL beyond the last */
/* SHA-256 of the file that the model was read from, in hex; NULL where the pack does not say (older packs, segments). */
const char* ht_model_source(const ht_pack* pack, int index);
/* As ht_model_source, of a model that is a part of a file: its ends are tensors of that file, by their names there. NULL of whole models. */
const char* ht_model_subgraph_of(const ht_pack* pack, int index);
ht_status ht_model_open(ht_pack* pack, const char* name, ht_model** out, ht_error* error);
void ht_model_free(ht_model* model);
const char* ht_model_dim(const ht_model* model, int index); /* NULL beyond the last */
ht_status ht_model_input(const ht_model* model, int index, ht_model_end* out); /* HT_BAD_VALUE beyond the last */
ht_status ht_model_output(const ht_model* model, int index, ht_model_end* out);

/* The default of an input that a call may leave out (an initializer that is also an input): pass *out in its place. *out is valid as
 * long as the model is open. HT_BAD_VALUE: the input has no default, or is beyond the last. */
ht_status ht_model_input_default(const ht_model* model, int index, DLTensor* out);

/* Bytes of working memory that a call with these dimensions needs, in the order of ht_model_dim; known before it runs. */
ht_status ht_model_memory(ht_model* model, const int64_t* dims, int64_t* bytes, ht_error* error);

/* Microseconds that a call with these dimensions is expected to take, in the order of ht_model_dim, and a band about it. Nothing is run or
 * allocated, and any thread may ask: what a scheduler of requests goes by. Beyond the largest size that was tuned it grows in proportion to
 * the size. HT_BAD_VALUE of a model whose sizes depend on data, and of packs that say no times. */
typedef struct {
  double low, expected, high;
} ht_expected_us_t;
ht_status ht_model_expected_us(const ht_model* model, const int64_t* dims, ht_expected_us_t* out, ht_error* error);

/* Shapes of all outputs that these inputs make, one after the other; of the inputs no data is read. */
ht_status ht_model_shapes(ht_model* model, const DLTensor* inputs, int64_t* shapes, ht_error* error);

/* Run it: one tensor for each input and for each output, in order, contiguous, on the CPU, outputs apart from everything else. Any
 * number of calls may run at once; each has a context of its own. A size that was seen lately allocates nothing. Past and present rows of a
 * cache (keys of a decoder, say) may be the first rows of one buffer: both then have its address and its strides, and new rows alone are
 * copied; all caches of a call lie in buffers of as many rows. */
ht_status ht_model_run(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, ht_error* error);

/* The same of a pack on a device: tensors lie there, and all is queued on `stream` (NULL: its legacy default stream). The first call on
 * a stream, or of larger sizes, gets working memory and may wait for the stream; then a call allocates and waits for nothing, and it may
 * be captured into a graph. Graphs that were captured on one stream share working memory: replay them one after the other. As of
 * ht_prepare, destroy a stream once its calls are done. */
ht_status ht_model_queue(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, void* stream, ht_error* error);

/* A model whose sizes depend on data: shapes of its outputs are known only while it runs. It asks `place` where each is to lie, once,
 * with its number, type and shape; the answer is contiguous memory of so many bytes, apart from everything else; NULL: there is none
 * (HT_NO_MEMORY), but of an output without elements. All of it is one call. `seed`: its random numbers; NULL: other ones each time.
 * Other models may be run so, too. On a device inputs lie there, and so must what `place` answers; see ht_model_queue_placed. */
typedef void* (*ht_model_place_fn)(void* arg, int output, const DLTensor* wanted);
ht_status ht_model_run_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg,
                              ht_error* error);

/* The same on `stream` of a pack's device (NULL, and ht_model_run_placed: its legacy default stream). The call waits for the stream wherever
 * data tell a size, a branch or whether a loop goes on; what follows the last of these is queued when it returns. A refused call may have
 * queued work that writes what was placed: free that in the order of the stream. A stream that is captured is refused. */
ht_status ht_model_queue_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg,
                                void* stream, ht_error* error);

/* Refuse later requests (HT_BAD_VALUE) that take more bytes than this of working memory and outputs, before any is allocated: what one
 * caller of a server may have. 0: no bound. HT_BAD_VALUE, too, of packs that were made before requests could be bounded. */
ht_status ht_model_limit(ht_model* model, int64_t max_request_bytes, ht_error* error);

ht_status ht_model_held(ht_model* model, ht_model_held_t* out);
void ht_model_trim(ht_model* model); /* give back the working memory that no call uses now; on a CPU that of a large request goes by itself after some 64 smaller ones */

/* Counts since the library was mapped, over all handles of this process. */
ht_status ht_stats(const ht_op* op, ht_counts_t* out);

/* Run parallel calls of this process on the server's own pool: `run` must call body(arg, i) for every i in [0, chunks) on
 * at most `threads` threads and return when all are done. NULL: haotuner's pool, which is the default. */
typedef void (*ht_parallel_fn)(void (*body)(void* arg, int64_t chunk), void* arg, int64_t chunks, int threads);
ht_status ht_use_pool(ht_pack* pack, ht_parallel_fn run);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif /* HAOTUNER_H_ */
