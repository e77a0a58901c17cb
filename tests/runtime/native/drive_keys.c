/* Attention of one query through haotuner.h, in one launch and then, the stream prepared, in parts of the keys: drive_keys PACK. */
#include <string.h>

#include "on_device.h"

enum { S = 400, D = 40 };

static float q[D], k[S * D], v[S * D], y[D], want[D];
static CUstream stream;

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  CHECK(argc == 2);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK && ht_op_find(pack, "attention_d40_causalend", &op, &error) == HT_OK);
  enter_device();
  CHECK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
  int64_t few[3] = {1, 1, D}, many[3] = {1, S, D};
  double scores[S], most = -1e30, sum = 0;
  for (int i = 0; i < D; ++i) q[i] = (float)(i * 7 % 5) / 4 - 0.5f;
  for (int i = 0; i < S * D; ++i) k[i] = (float)(i * 53 % 31) / 16 - 1, v[i] = (float)(i * 29 % 17) / 8 - 1;
  for (int j = 0; j < S; ++j) {
    scores[j] = 0;
    for (int i = 0; i < D; ++i) scores[j] += (double)q[i] * k[j * D + i] / sqrt(D);
    most = fmax(most, scores[j]);
  }
  for (int j = 0; j < S; ++j) sum += exp(scores[j] - most);
  for (int j = 0; j < S; ++j)
    for (int i = 0; i < D; ++i) want[i] += (float)(exp(scores[j] - most) / sum * v[j * D + i]);
  CHECK(ht_op_prepare(NULL, stream, &error) == HT_BAD_VALUE);
  for (int parts = 0; parts < 2; ++parts) {
    if (parts) CHECK(ht_op_prepare(op, stream, &error) == HT_OK && ht_op_prepare(op, stream, &error) == HT_OK);
    memset(y, 0, sizeof y);
    DLTensor tq = upload(q, sizeof q, fp32, 3, few), tk = upload(k, sizeof k, fp32, 3, many);
    DLTensor tv = upload(v, sizeof v, fp32, 3, many), ty = upload(y, sizeof y, fp32, 3, few);
    CHECK(cu.StreamSynchronize(NULL) == 0);
    CHECK(ht_run(op, (const DLTensor*[]){&tq, &tk, &tv, &ty}, 4, stream, &error) == HT_OK);
    CHECK(cu.StreamSynchronize(stream) == 0 && cu.MemcpyDtoHAsync(y, (CUdeviceptr)(size_t)ty.data, sizeof y, stream) == 0);
    CHECK(cu.StreamSynchronize(stream) == 0);
    for (int i = 0; i < D; ++i) CHECK(fabsf(y[i] - want[i]) < 1e-4f);
  }
  ht_pack_close(pack);
  printf("right\n");
  return 0;
}
