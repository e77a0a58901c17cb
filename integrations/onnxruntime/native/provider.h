/* The insides of the provider: a factory for the process, a provider for each session, a kernel for its graph or for each subgraph. */
#ifndef HT_PROVIDER_H_
#define HT_PROVIDER_H_

#include "haotuner.h"
#include "ort_api.h"

#define PROVIDER_NAME "HaotunerExecutionProvider"
#define OPTION_SIZE 1024
#define TEXT_SIZE 2400 /* of an error: a path, and the reason */

typedef struct { /* options of a session, ep.haotuner.NAME; empty: not set */
  char pack[OPTION_SIZE];         /* folder of the pack */
  char threads[16];               /* most threads of a call */
  char model_sha256[72];          /* hash of a model that comes as bytes */
  char fallback[8];               /* 1: a graph that the pack does not hold is left to the next provider */
  char tune[16];                  /* zero, or a budget such as 15s: a pack is made where none holds the model */
  char shapes[OPTION_SIZE];       /* ranges of dimensions that are tuned for */
  char cache[OPTION_SIZE];        /* folder of packs that were made */
  char command[OPTION_SIZE];      /* the program haotuner */
} provider_options;

typedef struct {
  ort_table api;
  const OrtLogger* logger;
} ort_host;

typedef struct {
  OrtEpFactory base;
  ort_table api, ep_api;
} provider_factory;

typedef struct {
  OrtEp base;
  ort_host host;
  ort_table ep_api;
  provider_options options;
  int threads;
  ht_pack* pack;
  ht_model** models; /* opened for the session's graph, or for subgraphs of it; kernels take them over and leave NULL */
  int model_count, has_subgraphs;
  OrtStatus* refused; /* why the graph is not served. The runtime only logs errors of GetCapability: Compile hands this out */
} provider;

/* A status in words. */
OrtStatus* provider_refuse(ort_table api, int code, const char* format, ...) __attribute__((format(printf, 3, 4)));
OrtStatus* provider_failed(ort_table api, const ht_error* error);
void provider_warn(const ort_host* host, const char* format, ...) __attribute__((format(printf, 2, 3)));

/* options.c: NULL, or what is wrong with the session's options. */
OrtStatus* provider_options_read(ort_table api, const OrtSessionOptions* session, provider_options* out);
int provider_threads(const provider_options* options); /* 0: not a number from 1 to 1024 */

/* identity.c: SHA-256 of a model's file, in hex; of one whose tensors lie in further files that of all their hashes. */
OrtStatus* model_sha256(ort_table api, const char* path, char out[65]);

/* external_data.c: names of the files in which tensors of a model lie, each once, in ascending order. NULL, or what is wrong; *out is to be cleared either way. */
typedef struct {
  char** names;
  int count;
} external_files;
const char* external_files_read(const unsigned char* model, size_t size, external_files* out);
void external_files_clear(external_files* all);

/* tune.c: make a pack for the model's file, or take the one of an earlier session; `folder` gets where it lies. */
OrtStatus* provider_tune(const ort_host* host, const provider_options* options, const char* model_path, const char* sha256, char folder[2 * OPTION_SIZE]);

/* subgraphs.c: the nodes of a graph that a subgraph's model computes, which are then `claimed`; *why: it fits the graph no more, and there are none. */
OrtStatus* subgraph_nodes(ort_table api, ht_model* model, const OrtNode* const* all, size_t count, char* claimed, const OrtNode** inside, size_t* inside_count,
                          const char** why);

/* kernel.c: of a subgraph the fused node may have further inputs, sizes that the model knows from its shapes, and lack outputs that nobody reads. */
OrtStatus* kernel_make(ort_table api, ht_model* model, int is_subgraph, const OrtNode* fused, OrtNodeComputeInfo** out);
void kernel_free(OrtNodeComputeInfo* info);

/* provider.c */
OrtStatus* provider_make(provider_factory* factory, const OrtSessionOptions* session, const OrtLogger* logger, OrtEp** out);
void provider_free(OrtEp* base);

#endif /* HT_PROVIDER_H_ */
