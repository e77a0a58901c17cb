/* A batch_matmul of a pack on CUDA device 0 through haotuner.h, stored nn in fp32: drive_products PACK. Prints the largest error.
 * Called through the door for tvm-ffi as well, in a process that has no tvm-ffi to tell a stream. */
#define _GNU_SOURCE
#include <tvm/ffi/c_api.h>

#include "ht_limits.h"
#include "on_device.h"
#include "open.h"

/* With no stream said: the legacy one. */
static void through_the_door(void* library, DLTensor* x, DLTensor* w, DLTensor* y) {
  int (*door)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  *(void**)&door = dlsym(library, "__tvm_ffi_batch_matmul");
  CHECK(door != NULL);
  TVMFFIAny args[4] = {{.type_index = kTVMFFIDLTensorPtr, .v_ptr = x},
                       {.type_index = kTVMFFIDLTensorPtr, .v_ptr = w},
                       {.type_index = kTVMFFIDLTensorPtr, .v_ptr = y},
                       {.type_index = kTVMFFIInt, .v_int64 = HT_MAX_THREADS}};
  TVMFFIAny result = {.type_index = kTVMFFIInt};
  CHECK(door(NULL, args, 4, &result) == 0 && result.type_index == kTVMFFINone);
  CHECK(cu.StreamSynchronize(NULL) == 0);
}

int main(int argc, char** argv) {
  enum { B = 3, M = 33, N = 20, K = 13 };
  static float x[B * M * K], w[K * N], y[B * M * N];
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  CUstream stream;
  CHECK(argc == 2);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK && ht_op_find(pack, "batch_matmul", &op, &error) == HT_OK);
  enter_device();
  CHECK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
  for (int i = 0; i < B * M * K; ++i) x[i] = (float)((i * 53 % 7) - 3);
  for (int i = 0; i < K * N; ++i) w[i] = (float)((i * 37 % 7) - 3);
  int64_t x_shape[3] = {B, M, K}, w_shape[2] = {K, N}, y_shape[3] = {B, M, N}, none[3] = {B, 0, K}, nothing[3] = {B, 0, N};
  DLTensor tx = upload(x, sizeof x, fp32, 3, x_shape), tw = upload(w, sizeof w, fp32, 2, w_shape), ty = upload(NULL, sizeof y, fp32, 3, y_shape);
  DLTensor x0 = tx, y0 = ty, away = tx;
  x0.shape = none, y0.shape = nothing, away.device.device_id = 1;
  CHECK(ht_bind(op, &tw, NULL, &linear, &error) == HT_BAD_VALUE);
  CHECK(ht_run(op, (const DLTensor*[]){&tx, &tw}, 2, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_run(op, (const DLTensor*[]){&away, &tw, &ty}, 3, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_run(op, (const DLTensor*[]){&x0, &tw, &ty}, 3, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_run(op, (const DLTensor*[]){&x0, &tw, &y0}, 3, stream, &error) == HT_OK);
  CHECK(cu.StreamSynchronize(NULL) == 0);
  CHECK(ht_run(op, (const DLTensor*[]){&tx, &tw, &ty}, 3, stream, &error) == HT_OK);
  CHECK(cu.StreamSynchronize(stream) == 0 && cu.MemcpyDtoHAsync(y, (CUdeviceptr)(size_t)ty.data, sizeof y, stream) == 0);
  CHECK(cu.StreamSynchronize(stream) == 0);
  through_the_door(pack->library, &tx, &tw, &ty);
  static float z[B * M * N], scales[B] = {0.5f, 2, -1}, bias[N], mask[M];
  float half = 0.5f;
  for (int j = 0; j < N; ++j) bias[j] = (float)(j % 5);
  for (int i = 0; i < M; ++i) mask[i] = (float)(i % 3);
  int64_t n_shape[1] = {N}, m_shape[2] = {M, 1}, b_shape[1] = {B};
  DLTensor tb = upload(bias, sizeof bias, fp32, 1, n_shape), tm = upload(mask, sizeof mask, fp32, 2, m_shape), ts = upload(scales, sizeof scales, fp32, 1, b_shape);
  DLTensor tz = upload(NULL, sizeof z, fp32, 3, y_shape), number = {&half, {kDLCPU, 0}, 0, {kDLFloat, 32, 1}, NULL, NULL, 0};
  DLTensor elsewhere = tm;
  elsewhere.device.device_id = 1;
  CHECK(ht_run(op, (const DLTensor*[]){&tx, &tw, &tz, NULL, NULL, &elsewhere}, 6, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_run(op, (const DLTensor*[]){&tx, &tw, &tz, &number}, 4, stream, &error) == HT_BAD_VALUE);
  CHECK(cu.StreamSynchronize(NULL) == 0);
  double off = 0;
  for (int one = 0; one < 2; ++one) {
    CHECK(ht_run(op, (const DLTensor*[]){&tx, &tw, &tz, &tb, one ? &number : &ts, &tm}, 6, stream, &error) == HT_OK);
    CHECK(cu.StreamSynchronize(stream) == 0 && cu.MemcpyDtoHAsync(z, (CUdeviceptr)(size_t)tz.data, sizeof z, stream) == 0);
    CHECK(cu.StreamSynchronize(stream) == 0);
    for (int i = 0; i < B * M * N; ++i)
      off = fmax(off, fabs(y[i] * (one ? half : scales[i / (M * N)]) + bias[i % N] + mask[i / N % M] - z[i]));
  }
  CHECK(off == 0);
  double worst = 0;
  for (int b = 0; b < B; ++b)
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) {
        double sum = 0;
        for (int t = 0; t < K; ++t) sum += (double)x[(b * M + i) * K + t] * w[t * N + j];
        worst = fmax(worst, fabs(sum - y[(b * M + i) * N + j]));
      }
  printf("worst=%.3g\n", worst);
  ht_pack_close(pack);
  return worst == 0 ? 0 : 1;
}
