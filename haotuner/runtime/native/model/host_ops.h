/* What the host computes between the segments of a chain. Tensors are contiguous, on the CPU, their addresses in `data`. */
#ifndef HT_MODEL_BETWEEN_H_
#define HT_MODEL_BETWEEN_H_

#include <dlpack/dlpack.h>
#include <stdint.h>

/* How many elements are not 0; their places into `out` (axes, count), one axis after the other, where it is not NULL. */
int64_t ht_between_nonzero(const DLTensor* of, int64_t* out);

/* A whole number that a tensor holds; -1 where there is no such element. What 64 bits with a sign do not hold is their largest. */
int ht_between_element(const DLTensor* of, int64_t place, int64_t* out);

/* float32 or float64 of a law (bytecode.h, STEP_RANDOM): of a seed, a place in the model and an element always the same number, as
 * haotuner/ops/host_steps.py has it. */
void ht_between_random(const DLTensor* out, const int64_t* law, uint64_t seed);

#endif /* HT_MODEL_BETWEEN_H_ */
