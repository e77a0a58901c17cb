/* What the C library reads from manifest.json: everything else it asks the pack's own library. */
#ifndef HT_MANIFEST_H_
#define HT_MANIFEST_H_

#include <stddef.h>

#define HT_MANIFEST_SCHEMA 2 /* the newest; 1 is read as well */

#define HT_LEVELS 4
extern const char* const ht_levels[HT_LEVELS]; /* the x86-64 psABI's micro-architecture levels, narrowest first */

typedef struct { /* of a plain pack, or of one that holds a pack for each of several levels: then library is empty */
  int schema;
  char library[40]; /* lib/<16 hex digits>.so */
  char sha256[65];
  char arch[40];
  char levels[HT_LEVELS][65]; /* sha256 of <level>/manifest.json; empty where the pack has no such level */
} ht_manifest;

/* Parse `size` bytes of JSON. NULL, or what is wrong in words. */
const char* ht_manifest_read(const char* text, size_t size, ht_manifest* out);

#endif /* HT_MANIFEST_H_ */
