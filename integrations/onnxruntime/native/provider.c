/* A session's provider: it takes the whole graph if the pack holds the model, or the nodes of the model's subgraphs, and no node of any other graph. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

static const char* provider_name(const OrtEp* base) { return (void)base, PROVIDER_NAME; }

static OrtStatus* concurrent_runs(OrtEp* base, bool* is_supported) {
  (void)base;
  *is_supported = true; /* each call of a model has a context of its own */
  return NULL;
}

static int usable_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* Number of the pack's model that was read from this file; -1: none, and *named says whether any names its file. */
static int model_of(const ht_pack* pack, const char* sha256, int* named) {
  *named = 0;
  for (int i = 0; i < ht_model_count(pack); ++i) {
    const char* source = ht_model_source(pack, i);
    *named |= source != NULL;
    if (source != NULL && strcmp(source, sha256) == 0) return i;
  }
  return -1;
}

/* The hash of the session's model: of its file, or as an option says of one that came as bytes. */
static OrtStatus* identify(provider* own, const char* path, char sha256[65]) {
  if (own->options.model_sha256[0] != 0) return strcpy(sha256, own->options.model_sha256), NULL;
  if (path == NULL || path[0] == 0)
    return provider_refuse(own->host.api, ORT_INVALID_ARGUMENT, "the model came as bytes, without a file; set ep.haotuner.model_sha256 to the SHA-256 of those bytes, or pass a path");
  return model_sha256(own->host.api, path, sha256);
}

/* Open a model of the pack, beside those that are open. */
static OrtStatus* add_model(provider* own, int index) {
  ht_error error;
  ht_model** grown = realloc(own->models, ((size_t)own->model_count + 1) * sizeof *grown);
  if (grown == NULL) return provider_refuse(own->host.api, ORT_FAIL, "no memory for a model");
  own->models = grown;
  if (ht_model_open(own->pack, ht_model_name(own->pack, index), &own->models[own->model_count], &error) != HT_OK) return provider_failed(own->host.api, &error);
  ++own->model_count;
  return NULL;
}

/* Open the subgraphs of the model's file that the pack holds. */
static OrtStatus* add_subgraphs(provider* own, const char* sha256) {
  OrtStatus* status = NULL;
  for (int i = 0; status == NULL && own->pack != NULL && i < ht_model_count(own->pack); ++i) {
    const char* file = ht_model_subgraph_of(own->pack, i);
    if (file != NULL && strcmp(file, sha256) == 0) status = add_model(own, i);
  }
  own->has_subgraphs = own->model_count > 0;
  return status;
}

static OrtStatus* open_pack(provider* own, const char* folder) {
  ht_error error;
  return ht_pack_open(folder, own->threads, &own->pack, &error) == HT_OK ? NULL : provider_failed(own->host.api, &error);
}

/* Open the pack's model for a file, or its subgraphs; none where there is none and the graph is to be left to others. */
static OrtStatus* open_models(provider* own, const char* path, const char* sha256) {
  ort_table api = own->host.api;
  const provider_options* options = &own->options;
  char made[2 * OPTION_SIZE];
  const char* folder = options->pack;
  int named = 0, index = own->pack == NULL ? -1 : model_of(own->pack, sha256, &named);
  OrtStatus* status = index < 0 ? add_subgraphs(own, sha256) : NULL;
  if (status != NULL || own->has_subgraphs) return status;
  if (index < 0 && options->tune[0] != 0) {
    status = provider_tune(&own->host, options, path, sha256, made);
    if (status != NULL) return status;
    ht_pack_close(own->pack);
    own->pack = NULL;
    if ((status = open_pack(own, folder = made)) != NULL) return status;
    index = model_of(own->pack, sha256, &named);
    if (index < 0 && ((status = add_subgraphs(own, sha256)) != NULL || own->has_subgraphs)) return status;
  }
  if (index < 0 && strcmp(options->fallback, "1") == 0) {
    provider_warn(&own->host, "the pack %s does not hold the model with the SHA-256 %.16s...; other providers compute it", folder, sha256);
    return NULL;
  }
  if (index < 0)
    return provider_refuse(api, ORT_INVALID_ARGUMENT, named || ht_model_count(own->pack) == 0 ? "the pack %s does not hold this model (SHA-256 %.16s... of %s); tune for this file, or set ep.haotuner.fallback=1 to leave it to other providers"
                                                            : "the pack %s does not say which files its models were read from (SHA-256 %.16s... of %s is asked for); tune again for a model in one file",
                           folder, sha256, path != NULL && path[0] != 0 ? path : "its bytes");
  return add_model(own, index);
}

/* *ours: this provider has nodes of the graph already; *others: another provider has some. */
static OrtStatus* providers_of(provider* own, const OrtNode* const* nodes, size_t count, int* ours, int* others) {
  *ours = *others = 0;
  for (size_t i = 0; i < count; ++i) {
    const char* name = NULL;
    OrtStatus* status = ort_node_ep_name(own->host.api, nodes[i], &name);
    if (status != NULL) return status;
    if (name == NULL || name[0] == 0) continue;
    *(strcmp(name, PROVIDER_NAME) == 0 ? ours : others) = 1;
  }
  return NULL;
}

/* Nodes that no provider has, moved to the front; their number. */
static size_t free_nodes(provider* own, const OrtNode** nodes, size_t count) {
  size_t used = 0;
  for (size_t i = 0; i < count; ++i) {
    const char* name = NULL;
    OrtStatus* status = ort_node_ep_name(own->host.api, nodes[i], &name);
    if (status != NULL) ort_release_status(own->host.api, status);
    else if (name == NULL || name[0] == 0) nodes[used++] = nodes[i];
  }
  return used;
}

static OrtStatus* fuse(provider* own, OrtEpGraphSupportInfo* support, const OrtNode* const* nodes, size_t count) {
  typedef OrtStatus* (*add_nodes)(OrtEpGraphSupportInfo*, const OrtNode* const*, size_t, const ort_fusion_options*);
  const ort_fusion_options options = {ORT_VERSION_USED, true}; /* the pack has the weights */
  if (count == 0) return NULL; /* another provider, named before, has all of the graph */
  return ORT_CALL(own->ep_api, EP_API_ADD_NODES_TO_FUSE, add_nodes)(support, nodes, count, &options);
}

/* Have the nodes of each subgraph fused. A subgraph whose ends are not in the graph any more is left to other providers. */
static OrtStatus* fuse_subgraphs(provider* own, OrtEpGraphSupportInfo* support, const OrtNode* const* nodes, size_t count) {
  const OrtNode** inside = calloc(count, sizeof *inside);
  char* claimed = calloc(count, 1);
  OrtStatus* status = inside == NULL || claimed == NULL ? provider_refuse(own->host.api, ORT_FAIL, "no memory for %zu nodes", count) : NULL;
  for (int i = 0; status == NULL && i < own->model_count; ++i) {
    const char* why;
    size_t used;
    ht_model_end end = {0};
    status = subgraph_nodes(own->host.api, own->models[i], nodes, count, claimed, inside, &used, &why);
    (void)ht_model_output(own->models[i], 0, &end);
    if (why != NULL) provider_warn(&own->host, "the subgraph that computes %s is left to other providers: %s", end.name, why);
    if (status == NULL && why == NULL) status = fuse(own, support, inside, used);
  }
  free(inside);
  free(claimed);
  return status;
}

static OrtStatus* capability(OrtEp* base, const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
  provider* own = (provider*)base;
  ort_table api = own->host.api;
  const OrtNode* parent = NULL;
  const char* path = NULL;
  size_t count = 0;
  int ours = 0, others = 0;
  char sha256[65];
  OrtStatus* status = ort_graph_parent(api, graph, &parent);
  if (status == NULL) status = ort_graph_node_count(api, graph, &count);
  if (status != NULL || parent != NULL || count == 0) return status; /* the body of a node is served with the node */
  const OrtNode** nodes = calloc(count, sizeof *nodes);
  if (nodes == NULL) return provider_refuse(api, ORT_FAIL, "no memory for %zu nodes", count);
  status = ort_graph_nodes(api, graph, nodes, count);
  if (status == NULL) status = providers_of(own, nodes, count, &ours, &others);
  if (status == NULL && !ours && own->model_count == 0 && own->refused == NULL) {
    status = ort_graph_path(api, graph, &path);
    if (status == NULL) status = identify(own, path, sha256);
    if (status == NULL) status = open_models(own, path, sha256);
  }
  if (status == NULL && !ours && others && own->model_count > 0 && !own->has_subgraphs)
    status = provider_refuse(api, ORT_INVALID_ARGUMENT, "another provider took a part of the graph before; the pack serves the whole model: name %s first, or alone", PROVIDER_NAME);
  if (status != NULL && own->refused == NULL) own->refused = status, status = NULL;
  if (status == NULL && !ours && own->refused == NULL && own->has_subgraphs) status = fuse_subgraphs(own, support, nodes, count);
  else if (status == NULL && !ours && (own->model_count > 0 || own->refused != NULL)) status = fuse(own, support, nodes, free_nodes(own, nodes, count));
  free(nodes);
  return status;
}

/* Where the model lies whose outputs a fused node has; NULL: none does. */
static OrtStatus* model_for(provider* own, const OrtNode* fused, ht_model*** out) {
  const OrtValueInfo* first = NULL;
  const char* name = NULL;
  size_t count = 0;
  ht_model_end end;
  OrtStatus* status = ort_node_output_count(own->host.api, fused, &count);
  const OrtValueInfo** values = calloc(count + 1, sizeof *values);
  if (status == NULL && values == NULL) status = provider_refuse(own->host.api, ORT_FAIL, "no memory for the ends of a node");
  if (status == NULL) status = ort_node_ends(own->host.api, ORT_OUTPUTS, fused, values, count);
  if (status == NULL && count > 0) first = values[0];
  free(values);
  if (status == NULL && first != NULL) status = ort_value_name(own->host.api, first, &name);
  *out = NULL;
  for (int i = 0; status == NULL && i < own->model_count; ++i) {
    if (own->models[i] == NULL) continue;
    if (!own->has_subgraphs) *out = &own->models[i];
    for (int k = 0; name != NULL && ht_model_output(own->models[i], k, &end) == HT_OK; ++k)
      if (strcmp(end.name, name) == 0) *out = &own->models[i];
  }
  return status;
}

static OrtStatus* compile(OrtEp* base, const OrtGraph** graphs, const OrtNode** fused, size_t count, OrtNodeComputeInfo** infos, OrtNode** context_nodes) {
  provider* own = (provider*)base;
  (void)graphs, (void)context_nodes;
  if (own->refused != NULL) {
    OrtStatus* status = own->refused;
    own->refused = NULL;
    return status;
  }
  for (size_t i = 0; i < count; ++i) {
    ht_model** model = NULL;
    OrtStatus* status = model_for(own, fused[i], &model);
    if (status == NULL && model == NULL) status = provider_refuse(own->host.api, ORT_EP_FAIL, "graph %zu of %zu that are to be compiled is none that it took", i + 1, count);
    if (status == NULL) status = kernel_make(own->host.api, *model, own->has_subgraphs, fused[i], &infos[i]);
    if (model != NULL) *model = NULL; /* the kernel has it, or freed it */
    if (status != NULL) return status;
  }
  return NULL;
}

static void release_infos(OrtEp* base, OrtNodeComputeInfo** infos, size_t count) {
  (void)base;
  for (size_t i = 0; i < count; ++i) kernel_free(infos[i]);
}

void provider_free(OrtEp* base) {
  provider* own = (provider*)base;
  if (own == NULL) return;
  if (own->refused != NULL) ort_release_status(own->host.api, own->refused);
  for (int i = 0; i < own->model_count; ++i) ht_model_free(own->models[i]);
  free(own->models);
  ht_pack_close(own->pack);
  free(own);
}

OrtStatus* provider_make(provider_factory* factory, const OrtSessionOptions* session, const OrtLogger* logger, OrtEp** out) {
  provider* own = calloc(1, sizeof *own);
  if (own == NULL) return provider_refuse(factory->api, ORT_FAIL, "no memory for a provider");
  own->host = (ort_host){factory->api, logger};
  own->ep_api = factory->ep_api;
  own->base.version = ORT_VERSION_USED;
  own->base.GetName = provider_name;
  own->base.GetCapability = capability;
  own->base.Compile = compile;
  own->base.ReleaseNodeComputeInfos = release_infos;
  own->base.IsConcurrentRunSupported = concurrent_runs;
  OrtStatus* status = provider_options_read(factory->api, session, &own->options);
  if (status == NULL) own->threads = own->options.threads[0] == 0 ? usable_cores() : provider_threads(&own->options);
  if (status == NULL && own->options.pack[0] != 0) status = open_pack(own, own->options.pack);
  if (status != NULL) return provider_free(&own->base), status;
  *out = &own->base;
  return NULL;
}
