/* Which nodes of a session's graph a subgraph of a pack computes: those on the paths from its inputs to its outputs.
 *
 * Ends of a subgraph are tensors of the file, by name. The runtime may have rewritten the nodes between them, so nodes are found by paths. A node that
 * reads only what lies outside (arithmetic on sizes of the session's inputs) stays outside, and so does a subgraph whose ends are not there any more.
 * Nodes whose results nobody reads are taken along, for a tensor inside that one of them reads is made nowhere then. */
#include <stdlib.h>
#include <string.h>

#include "provider.h"

typedef struct { /* a tensor that a node makes */
  const char* name;
  size_t node;
  int is_needed; /* by a node of the subgraph, or as its output */
  int is_read;   /* by the session's caller, or by a node whose results are read */
} tensor_of_node;

typedef struct {
  const OrtValueInfo** inputs; /* those that bodies of the node read among them; NULL: left out */
  const OrtValueInfo** outputs;
  size_t input_count, output_count;
  int is_needed, is_inside, is_dead;
  int reads_end; /* an input of the subgraph is among what it is computed from */
} graph_node;

typedef struct {
  ort_table api;
  const OrtNode* const* all;
  graph_node* nodes;
  tensor_of_node* tensors; /* by name */
  size_t count, tensor_count;
  ht_model* model;
  OrtStatus* status; /* of the first call that failed */
} matching;

static const char* name_of(matching* own, const OrtValueInfo* value) {
  const char* name = NULL;
  if (value != NULL && own->status == NULL) own->status = ort_value_name(own->api, value, &name);
  return name == NULL ? "" : name;
}

static int is_flag(matching* own, OrtStatus* (*ask)(ort_table, const OrtValueInfo*, bool*), const OrtValueInfo* value) {
  bool flag = false;
  if (own->status == NULL) own->status = ask(own->api, value, &flag);
  return flag;
}

/* Number of the model's input, or output, of this name; -1: it has none. */
static int end_of(const ht_model* model, int outputs, const char* name) {
  ht_model_end end;
  for (int i = 0; (outputs ? ht_model_output(model, i, &end) : ht_model_input(model, i, &end)) == HT_OK; ++i)
    if (strcmp(end.name, name) == 0) return i;
  return -1;
}

static int by_name(const void* a, const void* b) { return strcmp(((const tensor_of_node*)a)->name, ((const tensor_of_node*)b)->name); }

static tensor_of_node* maker_of(const matching* own, const char* name) {
  const tensor_of_node key = {.name = name};
  return own->tensor_count == 0 || *name == 0 ? NULL : bsearch(&key, own->tensors, own->tensor_count, sizeof key, by_name);
}

static OrtStatus* read_node(ort_table api, const OrtNode* node, graph_node* out) {
  size_t plain = 0, inner = 0;
  OrtStatus* status = ort_node_input_count(api, node, &plain);
  if (status == NULL) status = ort_node_implicit_count(api, node, &inner);
  if (status == NULL) status = ort_node_output_count(api, node, &out->output_count);
  if (status != NULL) return status;
  out->input_count = plain + inner;
  out->inputs = calloc(out->input_count + 1, sizeof *out->inputs);
  out->outputs = calloc(out->output_count + 1, sizeof *out->outputs);
  if (out->inputs == NULL || out->outputs == NULL) return provider_refuse(api, ORT_FAIL, "no memory for the ends of a node");
  status = ort_node_ends(api, ORT_INPUTS, node, out->inputs, plain);
  if (status == NULL) status = ort_node_ends(api, ORT_IMPLICIT_INPUTS, node, out->inputs + plain, inner);
  return status == NULL ? ort_node_ends(api, ORT_OUTPUTS, node, out->outputs, out->output_count) : status;
}

static OrtStatus* read_graph(matching* own) {
  size_t most = 0;
  for (size_t i = 0; i < own->count; ++i) {
    OrtStatus* status = read_node(own->api, own->all[i], &own->nodes[i]);
    if (status != NULL) return status;
    most += own->nodes[i].output_count;
  }
  own->tensors = calloc(most + 1, sizeof *own->tensors);
  if (own->tensors == NULL) return provider_refuse(own->api, ORT_FAIL, "no memory for %zu tensors", most);
  for (size_t i = 0; i < own->count; ++i)
    for (size_t k = 0; k < own->nodes[i].output_count; ++k) {
      const char* name = name_of(own, own->nodes[i].outputs[k]);
      if (*name != 0) own->tensors[own->tensor_count++] = (tensor_of_node){name, i, 0, 0};
    }
  qsort(own->tensors, own->tensor_count, sizeof *own->tensors, by_name);
  return own->status;
}

/* Mark nodes that the model's outputs are computed from, back to its inputs. Nodes come in an order in which they can run. */
static void mark_needed(matching* own) {
  for (size_t i = 0; i < own->tensor_count; ++i) own->tensors[i].is_needed = end_of(own->model, 1, own->tensors[i].name) >= 0;
  for (size_t i = own->count; i-- > 0;) {
    graph_node* node = &own->nodes[i];
    node->is_needed = 0;
    for (size_t k = 0; k < node->output_count; ++k) {
      const tensor_of_node* tensor = maker_of(own, name_of(own, node->outputs[k]));
      node->is_needed |= tensor != NULL && tensor->is_needed && end_of(own->model, 0, tensor->name) < 0;
    }
    for (size_t k = 0; node->is_needed && k < node->input_count; ++k) {
      tensor_of_node* tensor = maker_of(own, name_of(own, node->inputs[k]));
      if (tensor != NULL) tensor->is_needed = 1;
    }
  }
}

/* Mark nodes whose results nobody reads. */
static void mark_dead(matching* own) {
  for (size_t i = own->count; i-- > 0;) {
    graph_node* node = &own->nodes[i];
    node->is_dead = 1;
    for (size_t k = 0; k < node->output_count; ++k) {
      tensor_of_node* tensor = maker_of(own, name_of(own, node->outputs[k]));
      if (tensor != NULL && is_flag(own, ort_value_is_output, node->outputs[k])) tensor->is_read = 1;
      if (tensor != NULL && tensor->is_read) node->is_dead = 0;
    }
    for (size_t k = 0; !node->is_dead && k < node->input_count; ++k) {
      tensor_of_node* tensor = maker_of(own, name_of(own, node->inputs[k]));
      if (tensor != NULL) tensor->is_read = 1;
    }
  }
}

/* Whether a dead node reads nothing that may be computed from the model's outputs. */
static int goes_along(matching* own, const graph_node* node) {
  for (size_t k = 0; k < node->input_count; ++k) {
    const char* name = name_of(own, node->inputs[k]);
    const tensor_of_node* tensor = maker_of(own, name);
    if (tensor != NULL && end_of(own->model, 0, name) < 0 && !own->nodes[tensor->node].is_inside) return 0;
  }
  return 1;
}

/* `claimed`: nodes of other subgraphs. Of these nodes those are inside that read an input of the model, at once or through others, or constants alone. */
static void mark_inside(matching* own, const char* claimed) {
  for (size_t i = 0; i < own->count; ++i) {
    graph_node* node = &own->nodes[i];
    int reads_other = 0;
    node->reads_end = 0;
    for (size_t k = 0; node->is_needed && k < node->input_count; ++k) {
      const char* name = name_of(own, node->inputs[k]);
      const tensor_of_node* tensor = maker_of(own, name);
      if (*name == 0) continue;
      if (end_of(own->model, 0, name) >= 0) node->reads_end = 1;
      else if (tensor != NULL && own->nodes[tensor->node].is_inside) node->reads_end |= own->nodes[tensor->node].reads_end;
      else reads_other |= tensor != NULL || !is_flag(own, ort_value_is_constant, node->inputs[k]);
    }
    node->is_inside = node->is_needed ? node->reads_end || !reads_other : node->is_dead && !claimed[i] && goes_along(own, node);
  }
}

/* What keeps the nodes inside from being one call of the model; NULL: nothing. */
static const char* problem(matching* own, const char* claimed) {
  ht_model_end end;
  DLTensor unused;
  int present = 0;
  for (int i = 0; ht_model_output(own->model, i, &end) == HT_OK; ++i) {
    const tensor_of_node* tensor = maker_of(own, end.name); /* NULL: nobody reads it any more */
    if (tensor != NULL && !own->nodes[tensor->node].is_inside) return "one of its outputs is computed from something else";
    present += tensor != NULL && tensor->is_read;
  }
  if (present == 0) return "the graph reads none of its outputs";
  for (size_t i = 0; i < own->count; ++i) {
    const char* provider_of = NULL;
    if (!own->nodes[i].is_inside) continue;
    if (own->status == NULL) own->status = ort_node_ep_name(own->api, own->all[i], &provider_of);
    if (claimed[i] || (provider_of != NULL && *provider_of != 0)) return "another provider, or another subgraph, has one of its nodes";
    for (size_t k = 0; k < own->nodes[i].output_count; ++k)
      if (own->nodes[i].outputs[k] != NULL && is_flag(own, ort_value_is_output, own->nodes[i].outputs[k]) && end_of(own->model, 1, name_of(own, own->nodes[i].outputs[k])) < 0)
        return "a tensor inside of it is an output of the session";
    for (size_t k = 0; !own->nodes[i].is_dead && k < own->nodes[i].input_count; ++k) {
      const char* name = name_of(own, own->nodes[i].inputs[k]);
      if (*name != 0 && maker_of(own, name) == NULL && end_of(own->model, 0, name) < 0 && !is_flag(own, ort_value_is_constant, own->nodes[i].inputs[k]))
        return "it reads an input of the session that the pack holds as a constant; leave initializers out of the model's inputs";
    }
  }
  for (int i = 0; ht_model_input(own->model, i, &end) == HT_OK; ++i) {
    int is_read = ht_model_input_default(own->model, i, &unused) == HT_OK;
    for (size_t n = 0; n < own->count && !is_read; ++n)
      for (size_t k = 0; own->nodes[n].is_inside && k < own->nodes[n].input_count; ++k) is_read |= strcmp(name_of(own, own->nodes[n].inputs[k]), end.name) == 0;
    if (!is_read) return "one of its inputs is read by no node";
  }
  for (size_t i = 0; i < own->count; ++i)
    for (size_t k = 0; !own->nodes[i].is_inside && k < own->nodes[i].input_count; ++k) {
      const tensor_of_node* tensor = maker_of(own, name_of(own, own->nodes[i].inputs[k]));
      if (tensor != NULL && own->nodes[tensor->node].is_inside && end_of(own->model, 1, tensor->name) < 0) return "a node outside reads a tensor inside of it";
    }
  return NULL;
}

static void free_graph(matching* own) {
  for (size_t i = 0; own->nodes != NULL && i < own->count; ++i) free(own->nodes[i].inputs), free(own->nodes[i].outputs);
  free(own->nodes);
  free(own->tensors);
}

OrtStatus* subgraph_nodes(ort_table api, ht_model* model, const OrtNode* const* all, size_t count, char* claimed, const OrtNode** inside, size_t* inside_count,
                          const char** why) {
  matching own = {.api = api, .all = all, .count = count, .model = model, .nodes = calloc(count + 1, sizeof *own.nodes)};
  *inside_count = 0;
  *why = NULL;
  OrtStatus* status = own.nodes == NULL ? provider_refuse(api, ORT_FAIL, "no memory for %zu nodes", count) : read_graph(&own);
  if (status == NULL) {
    mark_needed(&own);
    mark_dead(&own);
    mark_inside(&own, claimed);
    *why = problem(&own, claimed);
    status = own.status;
  }
  for (size_t i = 0; status == NULL && *why == NULL && i < count; ++i)
    if (own.nodes[i].is_inside) claimed[i] = 1, inside[(*inside_count)++] = all[i];
  free_graph(&own);
  return status;
}
