/* Reading and checking a pack's files before any of its code is mapped. */
#ifndef HT_FILES_H_
#define HT_FILES_H_

#include <limits.h>
#include <sys/types.h>

#include "haotuner.h"

#define HT_BYTECODE_NAME 65

typedef struct { /* a whole model's schedule, the words of its file (native/model/bytecode.h) */
  char name[HT_BYTECODE_NAME];
  char source[65]; /* sha256 of the file that the model was read from; may be empty */
  int is_subgraph; /* it is a part of that file */
  int64_t* words;
  int64_t count;
} ht_bytecode;

typedef struct { /* of all whole models of a pack */
  int count;
  ht_bytecode* models;
} ht_bytecodes;

void ht_bytecodes_clear(ht_bytecodes* all);

typedef struct { /* the library that was checked */
  char library[PATH_MAX]; /* absolute */
  dev_t device;
  ino_t inode;
  ht_bytecodes bytecodes; /* to be cleared, also of a pack that is refused */
  int planned; /* for a device: its plans were made for this kind, not for another of the architecture */
} ht_checked;

struct ht_gpu;
/* Check manifest, hashes, format and CPU of a pack, and read the schedules of its models, all in its open folder; `path` names the folder. Of several levels it is the one
 * for this CPU, or that of the nearest device for `gpu`, which is NULL or what the pack will compute on. */
ht_status ht_files_check(int folder, const char* path, const struct ht_gpu* gpu, ht_checked* out, ht_error* error);

/* Fill *error (may be NULL) and return its code. */
ht_status ht_refuse(ht_error* error, ht_status code, const char* format, ...) __attribute__((format(printf, 3, 4)));

#endif /* HT_FILES_H_ */
