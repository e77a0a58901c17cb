/* Calls a micro-kernel on a part of a group's tensors, which are contiguous. */
#include "programs.h"

#include <string.h>

#include "ht_limits.h"

#define LARGEST ((int64_t)2147483647) /* kernels compare extents in 32 bits */

int ht_program_run(const ht_program* program, int32_t count, const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi) {
  DLTensor tensors[HT_MAX_OPERANDS];
  int64_t shapes[HT_MAX_OPERANDS][HT_MAX_AXES], strides[HT_MAX_OPERANDS][HT_MAX_AXES];
  TVMFFIAny args[HT_MAX_OPERANDS], result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  const int32_t* shape = program->shapes;
  const int8_t* loops = program->loops;
  for (int32_t i = 0; i < count; ++i) {
    const ht_program_tensor* tensor = &program->tensors[i];
    char* data = t[i];
    int64_t run = tensor->bits / 8, step = 1;
    for (int a = tensor->rank - 1; a >= 0; --a) {
      const int64_t extent = s[shape[a]];
      const int loop = loops[a];
      if (extent > LARGEST) return HT_PROGRAM_LARGE;
      shapes[i][a] = loop < 0 ? extent : hi[loop] - lo[loop];
      strides[i][a] = step;
      if (loop >= 0) data += lo[loop] * run;
      run *= extent;
      step *= extent;
    }
    tensors[i] = (DLTensor){data, {kDLCPU, 0}, tensor->rank, {tensor->code, tensor->bits, 1}, shapes[i], strides[i], 0};
    args[i].type_index = kTVMFFIDLTensorPtr;
    args[i].v_ptr = &tensors[i];
    shape += tensor->rank;
    loops += tensor->rank;
  }
  const ht_program_function run = program->small != NULL && s[program->extent] <= program->most ? program->small : program->run;
  return run(NULL, args, count, &result) == 0 ? 0 : HT_PROGRAM_REFUSED;
}
