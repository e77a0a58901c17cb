/* Runs the toy row sum of a pack through haotuner.h: operator PACK OP. Prints "right" if results and refusals are. */
#include <stdio.h>
#include <string.h>

#include "haotuner.h"

static DLTensor tensor(float* data, int rank, int64_t* shape) {
  DLTensor t = {data, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, NULL, 0};
  return t;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  float x[2 * 3 * 5], scale[3] = {1, 2, 3}, y[2 * 3];
  int64_t x_shape[3] = {2, 3, 5}, scale_shape[1] = {3}, y_shape[2] = {2, 3};
  if (argc != 3 || ht_pack_open(argv[1], 2, &pack, &error) != HT_OK) return 1;
  if (ht_op_find(pack, argv[2], &op, &error) != HT_OK) return 2;
  for (int i = 0; i < 30; ++i) x[i] = (float)i;
  DLTensor tx = tensor(x, 3, x_shape), ts = tensor(scale, 1, scale_shape), ty = tensor(y, 2, y_shape);
  const DLTensor* operands[3] = {&tx, &ts, &ty};
  if (ht_run(op, operands, 3, NULL, &error) != HT_OK) {
    printf("%s\n", error.text);
    return 3;
  }
  for (int row = 0; row < 6; ++row) { /* two rows of b: the second kernel, which marks its sums */
    float want = 1000;
    for (int k = 0; k < 5; ++k) want += x[row * 5 + k];
    if (y[row] != want * scale[row % 3]) return 4;
  }
  if (ht_run(op, operands, 2, NULL, &error) != HT_BAD_VALUE || ht_run(op, operands, 3, &error, &error) != HT_BAD_VALUE) return 5;
  ts.dtype.bits = 64;
  if (ht_run(op, operands, 3, NULL, &error) != HT_BAD_TYPE || strstr(error.text, "scale") == NULL) return 6;
  ht_linear* linear;
  if (ht_bind(op, &ts, NULL, &linear, &error) != HT_BAD_VALUE || strstr(error.text, "ht_run") == NULL) return 7;
  if (ht_op_find(pack, "dense_n100_k37", &op, &error) != HT_OK || ht_run(op, operands, 3, NULL, &error) != HT_BAD_VALUE) return 8;
  ht_pack_close(pack);
  printf("right\n");
  return 0;
}
