/* Reference kernels in C. */
#include <tvm/ffi/c_api.h>

int __tvm_ffi_cpu_dense_fp32__mr1_nr24_pw8_ku2_vl4_pf0(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)result;
  if (count != 6) return -1;
  const DLTensor *x = args[0].v_ptr, *w = args[1].v_ptr, *y = args[2].v_ptr;
  int64_t k = x->shape[1], rows = args[3].v_int64 * 1, columns = args[4].v_int64 * 24;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const float *row = (const float*)x->data + i * x->strides[0];
      const float *panel = (const float*)w->data + j / 8 * w->strides[0];
      float sum = args[5].v_int64 ? ((float*)y->data)[i * y->strides[0] + j] : 0;
      for (int64_t t = 0; t < k; ++t) sum += row[t] * panel[t * 8 + j % 8];
      ((float*)y->data)[i * y->strides[0] + j] = sum;
    }
  return 0;
}

int __tvm_ffi_cpu_dense_fp32__mr2_nr16_pw8_ku2_vl4_pf0(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)result;
  if (count != 6) return -1;
  const DLTensor *x = args[0].v_ptr, *w = args[1].v_ptr, *y = args[2].v_ptr;
  int64_t k = x->shape[1], rows = args[3].v_int64 * 2, columns = args[4].v_int64 * 16;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const float *row = (const float*)x->data + i * x->strides[0];
      const float *panel = (const float*)w->data + j / 8 * w->strides[0];
      float sum = args[5].v_int64 ? ((float*)y->data)[i * y->strides[0] + j] : 0;
      for (int64_t t = 0; t < k; ++t) sum += row[t] * panel[t * 8 + j % 8];
      ((float*)y->data)[i * y->strides[0] + j] = sum;
    }
  return 0;
}

int __tvm_ffi_cpu_dense_fp32__mr4_nr8_pw8_ku2_vl4_pf0(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)result;
  if (count != 6) return -1;
  const DLTensor *x = args[0].v_ptr, *w = args[1].v_ptr, *y = args[2].v_ptr;
  int64_t k = x->shape[1], rows = args[3].v_int64 * 4, columns = args[4].v_int64 * 8;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const float *row = (const float*)x->data + i * x->strides[0];
      const float *panel = (const float*)w->data + j / 8 * w->strides[0];
      float sum = args[5].v_int64 ? ((float*)y->data)[i * y->strides[0] + j] : 0;
      for (int64_t t = 0; t < k; ++t) sum += row[t] * panel[t * 8 + j % 8];
      ((float*)y->data)[i * y->strides[0] + j] = sum;
    }
  return 0;
}
