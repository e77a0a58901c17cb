/* The door of a pack's library for servers without Python or TVM: one function that gives a table of functions.
 * Used by the pack (c_api.c) and by the C library that opens packs (clib/open.c); neither sees the other's insides. */
#ifndef HT_DOOR_H_
#define HT_DOOR_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define HT_DOOR_VERSION 8 /* moves with any change below; the C library also opens packs of HT_DOOR_OLDEST and on */
#define HT_DOOR_OLDEST 1  /* dense only: no `kind`, no `run`; 2: nothing of devices; 3: nothing of groups; 4: no weight is packed behind it; 5: nothing of epilogues; 6: `run` on CPUs alone; otherwise the same, so that new members come last */
#define HT_DOOR_SYMBOL "ht_pack_door"

typedef struct ht_door_op {
  const char* name;
  int64_t n, k, panels, pw; /* the packed weight is [panels][k][pw], zero beyond column n; of a convolution n is its features */
  int32_t weight_kn;        /* users store the weight as (k, n) */
  const char* kind;         /* of operator; all other numbers above are 0 unless it is dense */
  int32_t operands;         /* tensors that `run` takes, the output last; behind it the optional ones */
  int64_t bound_bytes;      /* 0, or of what `bind` fills: the weight stays where it is, on a device */
  int32_t constants;        /* what its epilogue reads with one value a channel; the rest of `operands` are tensors like the output */
} ht_door_op;

typedef struct {
  int32_t version, op_count;
  void (*describe)(int op, ht_door_op* out);
  int64_t (*setting)(int op, int threads); /* what `call` wants for a thread count: the nearest plan, and the count */
  /* 0, or -1 with *kind = "TypeError", "ValueError" or "RuntimeError" and a text of at most `size` bytes */
  int (*call)(int op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias, int64_t setting,
              const char** kind, char* text, size_t size);
  void (*counts)(int op, int64_t out[3]); /* calls, fallbacks, out of range */
  void (*inject)(void (*run)(void (*body)(void* arg, int64_t chunk), void* arg, int64_t chunks, int threads));
  /* As `call`, for any kind: tensors in the order of the op's operands. */
  int (*run)(int op, const DLTensor* const* tensors, int32_t count, int64_t setting, const char** kind, char* text, size_t size);
  /* Since 3, of ops with bound_bytes: `bound` is aligned to 128 bytes and outlives what was queued with it. See ht_placed in ht.h. */
  int (*open)(int device, const char** kind, char* text, size_t size); /* load the pack's code there */
  int (*bind)(int op, const DLTensor* w, const DLTensor* bias, void* bound, const char** kind, char* text, size_t size);
  int (*prepare)(int op, const void* bound, void* stream, const char** kind, char* text, size_t size);
  int (*queue)(int op, const DLTensor* x, const void* bound, const DLTensor* y, int64_t setting, void* stream, const char** kind,
               char* text, size_t size);
  /* Since 4: as `queue`, of a grouped op. */
  int (*queue_groups)(int op, const DLTensor* x, const void* bound, const DLTensor* y, const DLTensor* offsets, int64_t setting,
                      void* stream, const char** kind, char* text, size_t size);
  /* Since 5, of ops whose weight the pack lays out: floats that it takes, 0 of others; and the work. `call` takes it as one axis. */
  int64_t (*packed_floats)(int op);
  int (*pack)(int op, const DLTensor* w, float* packed, const char** kind, char* text, size_t size);
  /* Since 6: as `call`, of an op with an epilogue: what that reads, values of a channel first. */
  int (*call_fused)(int op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* const* extra, int32_t count,
                    int64_t setting, const char** kind, char* text, size_t size);
  /* Since 7: as `run`, of a pack's code on a device: queued on `stream`. */
  int (*run_on)(int op, const DLTensor* const* tensors, int32_t count, int64_t setting, void* stream, const char** kind, char* text,
                size_t size);
  /* Since 8, of ops with bound_bytes and an epilogue: as `bind`, with all that has one value a channel; and as `queue`, with what else
   * a call brings, in the order of the op's operands: offsets of groups, a residual. */
  int (*bind_fused)(int op, const DLTensor* w, const DLTensor* const* channels, int32_t count, void* bound, const char** kind, char* text,
                    size_t size);
  int (*queue_fused)(int op, const DLTensor* x, const void* bound, const DLTensor* y, const DLTensor* const* more, int32_t count,
                     int64_t setting, void* stream, const char** kind, char* text, size_t size);
} ht_door;

#endif /* HT_DOOR_H_ */
