/* What the C library reads from manifest.json: everything else it asks the pack's own library. */
#ifndef HT_MANIFEST_H_
#define HT_MANIFEST_H_

#include <stddef.h>

#define HT_MANIFEST_SCHEMA 2 /* the newest; 1 is read as well */

#define HT_PLACED_LEVELS 64 /* of devices beside the CPU, in one pack */
#define HT_LEVEL_NAME 96
#define HT_MODEL_NAME 65    /* as haotuner/pack/folder.py, and a zero */
#define HT_MODELS_MOST 4096 /* whole models of a pack, segments among them */
#define HT_LEVELS 4
extern const char* const ht_levels[HT_LEVELS]; /* the x86-64 psABI's micro-architecture levels, narrowest first */

typedef struct { /* a whole model whose schedule is the file models/NAME.bytecode */
  char name[HT_MODEL_NAME], sha256[65];
  char source[65]; /* sha256 of the file that it was read from; empty where the manifest does not say */
  int is_subgraph; /* it is a part of that file */
} ht_manifest_model;

typedef struct { /* of a plain pack, or of one that holds a pack for each of several levels: then library is empty */
  int schema;
  char library[40]; /* lib/<16 hex digits>.so */
  char sha256[65];
  char arch[40];
  char id[80];                /* of the device that it was tuned on */
  double units, gbps;         /* of that device: compute units, memory bandwidth; 0 where the manifest does not say */
  char levels[HT_LEVELS][65]; /* sha256 of <level>/manifest.json; empty where the pack has no such level */
  double driver;              /* the oldest CUDA whose driver takes the code, 13000 for 13.0; 0 where the manifest does not say */
  int placed_count;           /* levels of devices, sm_90a/h200 */
  struct {
    char name[HT_LEVEL_NAME], sha256[65];
  } placed[HT_PLACED_LEVELS];
  int model_count;
  ht_manifest_model* models; /* freed by ht_manifest_clear */
} ht_manifest;

/* Parse `size` bytes of JSON. NULL, or what is wrong in words; *out is to be cleared either way. */
const char* ht_manifest_read(const char* text, size_t size, ht_manifest* out);
void ht_manifest_clear(ht_manifest* manifest);

#endif /* HT_MANIFEST_H_ */
