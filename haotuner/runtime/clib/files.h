/* Reading and checking a pack's files before any of its code is mapped. */
#ifndef HT_FILES_H_
#define HT_FILES_H_

#include <limits.h>
#include <sys/types.h>

#include "haotuner.h"

typedef struct { /* the library that was checked */
  char library[PATH_MAX]; /* absolute */
  dev_t device;
  ino_t inode;
} ht_checked;

/* Check manifest, hashes, format and CPU of a pack, all in its open folder; `path` names the folder. */
ht_status ht_files_check(int folder, const char* path, ht_checked* out, ht_error* error);

/* Fill *error (may be NULL) and return its code. */
ht_status ht_refuse(ht_error* error, ht_status code, const char* format, ...) __attribute__((format(printf, 3, 4)));

#endif /* HT_FILES_H_ */
