/* Expected times through haotuner.h: drive_times PACK MODEL DIM... prints them, then the nanoseconds of a call, the least of many. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "haotuner.h"

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_model* model;
  ht_expected_us_t us;
  int64_t dims[16] = {0}, least = INT64_MAX;
  for (int i = 3; i < argc && i < 19; ++i) dims[i - 3] = atoll(argv[i]);
  if (argc < 3 || ht_pack_open(argv[1], 1, &pack, &error) != HT_OK || ht_model_open(pack, argv[2], &model, &error) != HT_OK) return 2;
  ht_status status = ht_model_expected_us(model, dims, &us, &error);
  if (status != HT_OK) return printf("%d %s\n", status, error.text), 1;
  printf("%.3f %.3f %.3f", us.low, us.expected, us.high);
  for (int turn = 0; turn < 1000; ++turn) {
    int64_t begin = now();
    for (int i = 0; i < 100; ++i) ht_model_expected_us(model, dims, &us, &error);
    int64_t took = (now() - begin) / 100;
    if (took < least) least = took;
  }
  ht_status none = ht_model_expected_us(NULL, dims, &us, &error);
  ht_pack_close(pack);
  printf(" %lld %d %d\n", (long long)least, none, ht_model_expected_us(model, dims, &us, &error));
  ht_model_free(model);
  return 0;
}
