/* Softmax of a pack on CUDA device 0 through haotuner.h, in fp32: drive_generated PACK. Prints the largest relative error.
 * Rows side by side and apart, short and long, in place, none; what is refused, and that nothing is launched then. */
#include <string.h>

#include "on_device.h"

enum { M = 7, N = 300, APART = N + 5, ROOM = M * APART };

static float x[ROOM], y[ROOM];
static CUstream stream;

static void read_back(const DLTensor* t) {
  CHECK(cu.StreamSynchronize(stream) == 0 && cu.MemcpyDtoHAsync(y, (CUdeviceptr)(size_t)t->data, sizeof y, stream) == 0);
  CHECK(cu.StreamSynchronize(stream) == 0);
}

/* The largest relative error of y, rows `step` apart, and that what lies between rows is as it was. */
static double off(int m, int n, int step, float between) {
  double worst = 0;
  for (int i = 0; i < m; ++i) {
    double most = -1e30, sum = 0;
    for (int j = 0; j < n; ++j) most = fmax(most, x[i * step + j]);
    for (int j = 0; j < n; ++j) sum += exp(x[i * step + j] - most);
    for (int j = 0; j < n; ++j) {
      const double want = exp(x[i * step + j] - most) / sum;
      worst = fmax(worst, fabs(y[i * step + j] - want) / want);
    }
    for (int j = n; j < step && i * step + j < ROOM; ++j) CHECK(y[i * step + j] == between || between != between);
  }
  return worst;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  double worst = 0;
  CHECK(argc == 2);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK && ht_op_find(pack, "softmax", &op, &error) == HT_OK);
  enter_device();
  CHECK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
  for (int i = 0; i < ROOM; ++i) x[i] = (float)(i * 53 % 31) / 8 - 2;
  for (int i = 0; i < ROOM; ++i) y[i] = -7;
  static const int sizes[][2] = {{1, 1}, {3, 5}, {M, 16}, {2, 17}, {M, N}};
  for (int one = 0; one < 5; ++one)
    for (int apart = 0; apart < 2; ++apart)
      for (int queue = 0; queue < 2; ++queue) { /* on a stream, and on the legacy one */
        const int m = sizes[one][0], n = sizes[one][1], step = apart ? n + 5 : n;
        int64_t shape[2] = {m, n}, strides[2] = {step, 1};
        for (int i = 0; i < ROOM; ++i) y[i] = -7;
        DLTensor tx = upload(x, sizeof x, fp32, 2, shape), ty = upload(y, sizeof y, fp32, 2, shape);
        CHECK(cu.StreamSynchronize(NULL) == 0);
        if (apart) tx.strides = strides, ty.strides = strides;
        CHECK(ht_run(op, (const DLTensor*[]){&tx, &ty}, 2, queue ? stream : NULL, &error) == HT_OK);
        CHECK(cu.StreamSynchronize(NULL) == 0);
        read_back(&ty);
        worst = fmax(worst, off(m, n, step, -7));
        CHECK(ht_run(op, (const DLTensor*[]){&tx, &tx}, 2, queue ? stream : NULL, &error) == HT_OK); /* in place */
        CHECK(cu.StreamSynchronize(NULL) == 0);
        read_back(&tx);
        worst = fmax(worst, off(m, n, step, NAN));
      }
  int64_t shape[2] = {M, N}, other[2] = {M - 1, N}, none[2] = {0, N}, empty[2] = {M, 0};
  float host[1] = {0};
  DLTensor tx = upload(x, sizeof x, fp32, 2, shape), ty = upload(x, sizeof x, fp32, 2, shape);
  CHECK(cu.StreamSynchronize(NULL) == 0);
  DLTensor fewer = ty, away = tx, here = tx, wide = tx, shifted = tx, x0 = tx, y0 = ty, xe = tx, ye = ty;
  fewer.shape = other, away.device.device_id = 1, here.device = (DLDevice){kDLCPU, 0}, here.data = host, wide.dtype.bits = 64;
  shifted.byte_offset = 4 * N, x0.shape = none, y0.shape = none, xe.shape = empty, ye.shape = empty;
  const struct {
    const DLTensor *x, *y;
    ht_status status;
    const char* why;
  } refused[] = {
      {&tx, &fewer, HT_BAD_VALUE, "they must be equal"},      {&away, &ty, HT_BAD_VALUE, "lives on cuda:1"},
      {&here, &ty, HT_BAD_VALUE, "does not live on a CUDA"},  {&wide, &ty, HT_BAD_TYPE, "x has dtype"},
      {&tx, &shifted, HT_BAD_VALUE, "shares memory with x"}, {&tx, NULL, HT_BAD_TYPE, "is missing"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
    const ht_status found = ht_run(op, (const DLTensor*[]){refused[i].x, refused[i].y}, 2, stream, &error);
    if (found != refused[i].status || strstr(error.text, refused[i].why) == NULL) {
      fprintf(stderr, "case %zu: %d, %s\n", i, (int)found, error.text);
      return 1;
    }
  }
  CHECK(ht_run(op, (const DLTensor*[]){&tx}, 1, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_run(op, (const DLTensor*[]){&tx, &tx, &ty}, 3, stream, &error) == HT_BAD_TYPE);
  CHECK(ht_bind(op, &tx, NULL, &linear, &error) == HT_BAD_VALUE && strstr(error.text, "ht_run") != NULL);
  read_back(&ty);
  CHECK(memcmp(x, y, sizeof x) == 0); /* nothing was launched */
  CHECK(ht_run(op, (const DLTensor*[]){&x0, &y0}, 2, stream, &error) == HT_OK);
  CHECK(ht_run(op, (const DLTensor*[]){&xe, &ye}, 2, stream, &error) == HT_OK);
  read_back(&ty);
  CHECK(memcmp(x, y, sizeof x) == 0);
  printf("worst=%.3g\n", worst);
  ht_pack_close(pack);
  return worst < 1e-5 ? 0 : 1;
}
