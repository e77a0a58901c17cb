/* Attention's two products of a pack through haotuner.h: products PACK. Prints "right" if results and refusals are. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "haotuner.h"

enum { B = 2, T = 9, H = 3, D = 8 };

static float q[B * T * H * D], k[B * T * H * D], y[B * H * T * T];

static DLTensor tensor(float* data, int rank, int64_t* shape, int64_t* strides) {
  DLTensor t = {data, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, strides, 0};
  return t;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  int64_t heads[4] = {B, H, T, D}, apart[4] = {T * H * D, D, H * D, 1}, scores[4] = {B, H, T, T}, hidden[4] = {B, 1, 1, T};
  float scale = 0.5f, mask[B * T];
  if (argc != 2 || ht_pack_open(argv[1], 2, &pack, &error) != HT_OK) return 1;
  if (ht_op_find(pack, "batch_matmul_nt", &op, &error) != HT_OK) return 2;
  for (int i = 0; i < B * T * H * D; ++i) q[i] = (float)(i % 7 - 3), k[i] = (float)(i % 5 - 2);
  for (int i = 0; i < B * T; ++i) mask[i] = i % T == 4 ? -INFINITY : (float)(i % 3);
  DLTensor tq = tensor(q, 4, heads, apart), tk = tensor(k, 4, heads, apart), ty = tensor(y, 4, scores, NULL);
  DLTensor ts = tensor(&scale, 0, NULL, NULL), tm = tensor(mask, 4, hidden, NULL);
  const DLTensor* operands[7] = {&tq, &tk, &ty, NULL, &ts, &tm, NULL};
  if (ht_run(op, operands, 6, NULL, &error) != HT_OK) {
    printf("%s\n", error.text);
    return 3;
  }
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h)
      for (int i = 0; i < T; ++i)
        for (int j = 0; j < T; ++j) {
          float want = 0;
          for (int d = 0; d < D; ++d) want += q[((b * T + i) * H + h) * D + d] * k[((b * T + j) * H + h) * D + d];
          if (y[((b * H + h) * T + i) * T + j] != want * scale + mask[b * T + j]) return 4;
        }
  if (ht_run(op, operands, 2, NULL, &error) != HT_BAD_VALUE || ht_run(op, operands, 7, NULL, &error) != HT_BAD_TYPE) return 5;
  operands[1] = NULL;
  if (ht_run(op, operands, 3, NULL, &error) != HT_BAD_TYPE || strstr(error.text, "w is missing") == NULL) return 6;
  operands[1] = &ty;
  if (ht_run(op, operands, 3, NULL, &error) != HT_BAD_VALUE) return 7;
  operands[1] = &tk;
  apart[0] = INT64_MAX / 2; /* products of a stride and an extent that need more than 64 bits */
  if (ht_run(op, operands, 3, NULL, &error) != HT_BAD_VALUE || strstr(error.text, "beyond any memory") == NULL) return 8;
  apart[0] = T * H * D;
  heads[0] = heads[1] = heads[2] = INT32_MAX;
  if (ht_run(op, operands, 3, NULL, &error) != HT_BAD_VALUE) return 9;
  heads[0] = -1;
  if (ht_run(op, operands, 3, NULL, &error) != HT_BAD_VALUE || strstr(error.text, "not in 0..2^31-1") == NULL) return 10;
  ht_pack_close(pack);
  printf("right\n");
  return 0;
}
