/* Generated ops of a CPU pack through haotuner.h: generated PACK THREADS, a call a line of standard input.
 *
 * A line: OP IN_PLACE OUT_FILE,… TENSOR… with TENSOR = CODE:BITS:OFFSET:SHAPE:STRIDES:FILE, numbers of an axis between commas ("." for no
 * axis), the output last. FILE holds the memory, the output's too; what is there after the call goes to OUT_FILE, one for each of the
 * last tensors. IN_PLACE: the input that is the output as well, or -1. Answers a line each: "ok", or "refused CODE TEXT". */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "haotuner.h"

enum { MOST = 16, AXES = 8 };

typedef struct {
  DLTensor tensor;
  int64_t shape[AXES], strides[AXES];
  char* memory;
  size_t bytes;
} held;

static void stop(const char* why, const char* what) {
  fprintf(stderr, "%s: %s\n", why, what);
  exit(1);
}

static int numbers(char* text, int64_t* out) {
  int count = 0;
  char* rest = NULL;
  if (strcmp(text, ".") == 0) return 0;
  for (char* one = strtok_r(text, ",", &rest); one != NULL && count < AXES; one = strtok_r(NULL, ",", &rest)) out[count++] = atoll(one);
  return count;
}

static void get(const char* path, held* out) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) stop("cannot be read", path);
  out->bytes = (size_t)ftell(file);
  out->memory = aligned_alloc(64, (out->bytes + 64) / 64 * 64);
  rewind(file);
  if (out->memory == NULL || fread(out->memory, 1, out->bytes, file) != out->bytes) stop("cannot be read", path);
  fclose(file);
}

static void put(const char* path, const held* from) {
  FILE* file = fopen(path, "wb");
  if (file == NULL || fwrite(from->memory, 1, from->bytes, file) != from->bytes || fclose(file) != 0) stop("cannot be written", path);
}

static void parse(char* text, held* out) {
  char *rest = NULL, *parts[6];
  for (int i = 0; i < 6; ++i)
    if ((parts[i] = strtok_r(i == 0 ? text : NULL, ":", &rest)) == NULL) stop("no tensor", text);
  const int rank = numbers(parts[3], out->shape);
  if (numbers(parts[4], out->strides) != rank) stop("as many strides as axes", parts[5]);
  get(parts[5], out);
  const DLDataType type = {(uint8_t)atoi(parts[0]), (uint8_t)atoi(parts[1]), 1};
  out->tensor = (DLTensor){out->memory, {kDLCPU, 0}, rank, type, out->shape, out->strides, (uint64_t)atoll(parts[2])};
}

static void serve(ht_pack* pack, char* line) {
  static held all[MOST];
  const DLTensor* operands[MOST];
  char *rest = NULL, *name = strtok_r(line, " \n", &rest), *same = strtok_r(NULL, " \n", &rest), *to = strtok_r(NULL, " \n", &rest);
  ht_error error;
  ht_op* op;
  int count = 0;
  if (to == NULL || ht_op_find(pack, name, &op, &error) != HT_OK) stop("no such call", line);
  for (char* one = strtok_r(NULL, " \n", &rest); one != NULL && count < MOST; one = strtok_r(NULL, " \n", &rest)) {
    parse(one, &all[count]);
    operands[count] = &all[count].tensor;
    ++count;
  }
  const int in_place = atoi(same), last = in_place < 0 ? count - 1 : in_place;
  operands[count - 1] = &all[last].tensor;
  const ht_status status = ht_run(op, operands, count, NULL, &error);
  if (status == HT_OK) printf("ok\n");
  else printf("refused %d %s\n", (int)status, error.text);
  int written = 1;
  for (const char* comma = to; (comma = strchr(comma, ',')) != NULL; ++comma) ++written;
  char* behind = NULL;
  for (int i = 0; i < written; ++i) put(strtok_r(i == 0 ? to : NULL, ",", &behind), &all[in_place < 0 ? count - written + i : in_place]);
  for (int i = 0; i < count; ++i) free(all[i].memory);
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  char* line = NULL;
  size_t room = 0;
  if (argc != 3) return 1;
  if (ht_pack_open(argv[1], atoi(argv[2]), &pack, &error) != HT_OK) stop("cannot be opened", error.text);
  while (getline(&line, &room, stdin) > 0) serve(pack, line);
  free(line);
  ht_pack_close(pack);
  return 0;
}
