/* dense on CUDA: a checked call is queued on its stream. */
#ifndef HT_CUDA_QUEUE_H_
#define HT_CUDA_QUEUE_H_

#include "cuda_dense.h"

int ht_cuda_dense_launch(const ht_op* op, const ht_plan* plan, const ht_call* call, ht_queue* queue, ht_error* error);

#endif /* HT_CUDA_QUEUE_H_ */
