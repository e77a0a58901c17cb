/* What the C library reads from manifest.json: everything else it asks the pack's own library. */
#ifndef HT_MANIFEST_H_
#define HT_MANIFEST_H_

#include <stddef.h>

#define HT_MANIFEST_SCHEMA 1

typedef struct {
  char library[40]; /* lib/<16 hex digits>.so */
  char sha256[65];
  char arch[40];
} ht_manifest;

/* Parse `size` bytes of JSON. NULL, or what is wrong in words. */
const char* ht_manifest_read(const char* text, size_t size, ht_manifest* out);

#endif /* HT_MANIFEST_H_ */
