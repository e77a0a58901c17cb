/* Groups of a model that a program of the searched space computes: the call of a micro-kernel by a group's tensors and sizes. */
#ifndef HT_PROGRAMS_H_
#define HT_PROGRAMS_H_

#include <stdint.h>
#include <tvm/ffi/c_api.h>

typedef struct {
  uint8_t rank, code, bits; /* DLPack's element type */
} ht_program_tensor;

typedef int (*ht_program_function)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

typedef struct ht_program {
  ht_program_function run;
  const ht_program_tensor* tensors; /* in the order of a call */
  const int32_t* shapes;            /* of all tensors, one after the other: places among the sizes */
  const int8_t* loops;              /* likewise which loop of the group an axis is; -1: threads never share it */
  ht_program_function small;        /* runs where the size at `extent` is at most `most`; NULL: none */
  int64_t most;
  int32_t extent;
} ht_program;

enum { HT_PROGRAM_LARGE = 1, HT_PROGRAM_REFUSED }; /* an extent beyond 32 bits; the kernel refused its tensors */

/* s, t, lo and hi as of ht_group; loops that no axis names must be whole. 0, or one of the above. */
int ht_program_run(const ht_program* program, int32_t count, const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi);

#endif /* HT_PROGRAMS_H_ */
