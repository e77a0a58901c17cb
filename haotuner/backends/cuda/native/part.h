/* A part of a device: so many of its multiprocessors as a green context (CUDA 12.4), for a process that times on them alone. */
#ifndef HTT_PART_H_
#define HTT_PART_H_

#include "cuda/driver.h"

/* The context and a stream of a part of exactly `units`; -1 with *error filled where there is no such part. */
int htt_part(const ht_cu* cu, int ordinal, int units, CUcontext* context, CUstream* stream, ht_error* error);

#endif /* HTT_PART_H_ */
