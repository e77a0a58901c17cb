/* What every generated kernel of a pack is given: by value, the same for the host's compiler, nvcc and NVRTC. */
#ifndef HT_CUDA_GENERATED_H
#define HT_CUDA_GENERATED_H

#define HT_GENERATED_OPERANDS 8
#define HT_GENERATED_AXES 12

typedef struct { /* tensors in a call's order, what is written last, the output behind what is beside it; strides in elements; sizes of the graph's dimensions */
    void* data[HT_GENERATED_OPERANDS];
    long long strides[HT_GENERATED_OPERANDS][HT_GENERATED_AXES];
    long long sizes[HT_GENERATED_AXES];
    float* partial; /* of a kernel that folds an axis by several blocks: results of parts, one part after the other */
    int parts, phase; /* 0: all of it; 1: the part of blockIdx.y into `partial`; 2: joins the parts; of rows in stages each stage */
} ht_generated_args;

#endif
