/* Reading and checking a pack's files before any of its code is mapped. */
#ifndef HT_FILES_H_
#define HT_FILES_H_

#include "haotuner.h"

/* Check manifest, hash, format and CPU of the pack at `path`; the absolute path of its library goes to `library`. */
ht_status ht_files_check(const char* path, char* library, size_t room, ht_error* error);

/* Fill *error (may be NULL) and return its code. */
ht_status ht_refuse(ht_error* error, ht_status code, const char* format, ...) __attribute__((format(printf, 3, 4)));

#endif /* HT_FILES_H_ */
