/* The door of a pack's library for servers without Python or TVM: one function that gives a table of functions.
 * Used by the pack (door.c) and by the C library that opens packs (clib/open.c); neither sees the other's insides. */
#ifndef HT_DOOR_H_
#define HT_DOOR_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define HT_DOOR_VERSION 1 /* moves with any change below */
#define HT_DOOR_SYMBOL "ht_pack_door"

typedef struct {
  const char* name;
  int64_t n, k, panels, pw; /* the packed weight is [panels][k][pw], zero beyond column n */
  int32_t weight_kn;        /* users store the weight as (k, n) */
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
} ht_door;

#endif /* HT_DOOR_H_ */
