/* Files of a model that tests open: FOLDER/NAME.bytecode and FOLDER/NAME.weights. */
#ifndef HT_TEST_BYTECODES_H_
#define HT_TEST_BYTECODES_H_

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/model.h"

typedef struct {
  int64_t* words;
  int64_t count;
  int weights; /* -1: it has none */
} model_files;

static inline int file_of(const char* folder, const char* name, const char* kind) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.%s", folder, name, kind);
  return open(path, O_RDONLY);
}

/* The files of a model; the process ends where there is no bytecode. */
static inline model_files files_of(const char* folder, const char* name) {
  const int file = file_of(folder, name, "bytecode");
  const off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
  if (size > 0) lseek(file, 0, SEEK_SET);
  model_files files = {size <= 0 ? NULL : malloc((size_t)size), size / 8, file_of(folder, name, "weights")};
  if (files.words == NULL || size % 8 != 0 || read(file, files.words, (size_t)size) != size) printf("no bytecode of %s\n", name), exit(1);
  close(file);
  return files;
}

static inline ht_model* open_files(const model_files* files, int threads, ht_error* error) {
  return ht_model_open(files->words, files->count, files->weights, 1, 0, threads, error);
}

#endif /* HT_TEST_BYTECODES_H_ */
