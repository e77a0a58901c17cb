/* A group of two outputs in one launch through haotuner.h: drive_beside PACK OP. e = exp(x), and h = e / 2 before it in the
 * order of a call. Rows side by side and apart, none; outputs that share memory are refused. */
#include <string.h>

#include "on_device.h"

enum { M = 5, N = 70, APART = N + 3, ROOM = M * APART };

static float x[ROOM], e[ROOM], h[ROOM];

static void read_back(const DLTensor* t, float* to) {
  CHECK(cu.StreamSynchronize(NULL) == 0 && cu.MemcpyDtoHAsync(to, (CUdeviceptr)(size_t)t->data, sizeof x, NULL) == 0);
  CHECK(cu.StreamSynchronize(NULL) == 0);
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  CHECK(argc == 3);
  find_driver();
  CHECK(ht_pack_open_on(argv[1], 0, &pack, &error) == HT_OK && ht_op_find(pack, argv[2], &op, &error) == HT_OK);
  enter_device();
  for (int i = 0; i < ROOM; ++i) x[i] = (float)(i * 53 % 31) / 8 - 2;
  for (int apart = 0; apart < 2; ++apart) {
    int64_t shape[2] = {M, N}, strides[2] = {apart ? APART : N, 1};
    for (int i = 0; i < ROOM; ++i) e[i] = h[i] = -7;
    DLTensor tx = upload(x, sizeof x, fp32, 2, shape), te = upload(e, sizeof e, fp32, 2, shape), th = upload(h, sizeof h, fp32, 2, shape);
    tx.strides = te.strides = th.strides = strides;
    CHECK(ht_run(op, (const DLTensor*[]){&tx, &th, &te}, 3, NULL, &error) == HT_OK);
    read_back(&te, e);
    read_back(&th, h);
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < strides[0]; ++j) {
        const int at = i * (int)strides[0] + j;
        if (j < N) CHECK(fabs(e[at] - exp(x[at])) < 1e-5 * e[at] && h[at] == e[at] / 2);
        else CHECK(e[at] == -7 && h[at] == -7);
      }
    const struct {
      const DLTensor *h, *e;
      const char* why;
    } refused[] = {{&te, &te, "is written, too"}, {&tx, &te, "is read meanwhile"}, {&th, &tx, "is read meanwhile"}};
    for (int i = 0; i < 3; ++i) {
      CHECK(ht_run(op, (const DLTensor*[]){&tx, refused[i].h, refused[i].e}, 3, NULL, &error) == HT_BAD_VALUE);
      CHECK(strstr(error.text, refused[i].why) != NULL);
    }
    CHECK(ht_run(op, (const DLTensor*[]){&tx, &te}, 2, NULL, &error) == HT_BAD_VALUE);
  }
  printf("right\n");
  ht_pack_close(pack);
  return 0;
}
