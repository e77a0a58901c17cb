/* Groups of a model: plain loops or programs of the searched space, made by haotuner/partition. */
#ifndef HT_LOOPS_H_
#define HT_LOOPS_H_

#include <stdint.h>

#define HT_GROUP_AXES 12 /* loops of a group at most */

typedef struct { /* s: the request's sizes; t: tensors, the outputs last; lo, hi: bounds of the last one's loops */
  void (*run)(const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi);
  const char* name; /* by which a schedule calls it */
  int32_t sizes; /* how many of the request's sizes it may read: the first ones */
  int32_t rank, tensors, outputs;
  const int32_t* extents; /* of the loops: places among the sizes */
  const int32_t* ranks;   /* of the outputs, and */
  const int32_t* shapes;  /* one after the other their extents, likewise: some loops are inside */
  const struct ht_program* program; /* what computes it in the place of `run` (programs.h), or NULL */
  uint32_t shared;        /* a bit for each loop that threads may share */
} ht_group;

/* s and t as above; threads share an axis of the output. 0, or what ht_program_run says. */
int ht_group_run(const ht_group* group, const int64_t* sizes, void* const* tensors, int threads);

extern const ht_group ht_groups[];
extern const int ht_group_count;

#endif /* HT_LOOPS_H_ */
