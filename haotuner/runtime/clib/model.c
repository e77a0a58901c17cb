/* Whole models: the pack's library runs them (native/model), with their weights mapped from the pack's folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "model/model_api.h"
#include "open.h"

struct ht_model {
  ht_pack* pack;
  const ht_model_door* door;
  struct ht_loaded_model* loaded;
  int (*expected)(const struct ht_loaded_model*, const int64_t*, double*, const char**, char*, size_t); /* NULL of packs made before it */
  int segment_count; /* of a chain: models of their own, which close behind it */
  ht_model** segments;
};

static ht_status answer(int rc, const char* kind, const char* text, ht_error* error) {
  if (rc == 0) return HT_OK;
  ht_status code = strcmp(kind, "TypeError") == 0 ? HT_BAD_TYPE : strcmp(kind, "ValueError") == 0 ? HT_BAD_VALUE : HT_INTERNAL;
  return ht_refuse(error, code, "%s", text);
}

static const ht_model_door* door_of(const ht_pack* pack) {
  const ht_model_door* (*enter)(void);
  *(void**)&enter = dlsym(pack->library, HT_MODEL_DOOR_SYMBOL);
  const ht_model_door* door = enter == NULL ? NULL : enter();
  return door != NULL && door->version >= HT_MODEL_DOOR_COMPILED && door->version <= HT_MODEL_DOOR_VERSION ? door : NULL;
}

static int is_compiled(const ht_model_door* door) { return door->version == HT_MODEL_DOOR_COMPILED; }

int ht_model_count(const ht_pack* pack) {
  const ht_model_door* door = pack == NULL ? NULL : door_of(pack);
  return door == NULL ? 0 : is_compiled(door) ? door->compiled : pack->bytecodes.count;
}

const char* ht_model_name(const ht_pack* pack, int index) {
  if (index < 0 || index >= ht_model_count(pack)) return NULL;
  const ht_model_door* door = door_of(pack);
  int64_t count;
  return is_compiled(door) ? (const char*)(door->compiled_words(index, &count) + 5) /* behind head and length, see model/bytecode.h */
                           : pack->bytecodes.models[index].name;
}

static const char* source_of(const ht_pack* pack, int index, int is_subgraph) {
  if (index < 0 || index >= ht_model_count(pack) || is_compiled(door_of(pack))) return NULL;
  const ht_bytecode* model = &pack->bytecodes.models[index];
  return model->source[0] == 0 || model->is_subgraph != is_subgraph ? NULL : model->source;
}

const char* ht_model_source(const ht_pack* pack, int index) { return source_of(pack, index, 0); }

const char* ht_model_subgraph_of(const ht_pack* pack, int index) { return source_of(pack, index, 1); }

/* The file of weights; -1 where there is none. The library is FOLDER/lib/NAME.so. */
static int open_weights(const ht_pack* pack, const char* name) {
  Dl_info facts;
  char path[4096 + 128];
  if (dladdr((const void*)pack->door, &facts) == 0 || facts.dli_fname == NULL || strlen(facts.dli_fname) >= 4096) return -1;
  strcpy(path, facts.dli_fname);
  for (int up = 0; up < 2; ++up) {
    char* slash = strrchr(path, '/');
    if (slash == NULL) return -1;
    *slash = 0;
  }
  snprintf(path + strlen(path), sizeof path - strlen(path), "/models/%.80s.weights", name);
  return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe would be waited for; it is refused when it is mapped */
}

/* Of a pack made before, whose library holds the schedules. */
static int open_compiled(const ht_pack* pack, const ht_model_door* door, int index, int weights, struct ht_loaded_model** out, const char** kind, char* text,
                         size_t size) {
  ht_model_open_compiled open_model;
  *(void**)&open_model = *(void* const*)&door->open;
  if (pack->device < 0) return open_model(index, weights, pack->threads, out, kind, text, size);
  int (*open_on)(int, int, int, int, struct ht_loaded_model**, const char**, char*, size_t);
  *(void**)&open_on = dlsym(pack->library, HT_MODEL_OPEN_COMPILED_ON_SYMBOL);
  if (open_on == NULL) return snprintf(text, size, "the pack's models are of before GPUs served any; tune again"), *kind = "RuntimeError", -1;
  return open_on(index, weights, pack->device, pack->planned ? 1 : 2, out, kind, text, size);
}

static int open_there(const ht_pack* pack, const ht_model_door* door, int index, int weights, struct ht_loaded_model** out, const char** kind, char* text,
                      size_t size) {
  if (is_compiled(door)) return open_compiled(pack, door, index, weights, out, kind, text, size);
  const ht_bytecode* bytecode = &pack->bytecodes.models[index];
  const int on_device = pack->device >= 0, threads = !on_device ? pack->threads : pack->planned ? 1 : 2;
  return door->open(bytecode->words, bytecode->count, weights, 1, on_device ? pack->device : 0, threads, out, kind, text, size);
}

static ht_status open_one(ht_pack* pack, const char* name, ht_model** out, ht_error* error);

/* A chain's segments; other models have none. No segment is a chain, so nothing opens what is being opened. */
static ht_status open_segments(ht_model* model, ht_error* error) {
  const char* (*segment)(struct ht_loaded_model*, int, struct ht_loaded_model*);
  *(void**)&segment = dlsym(model->pack->library, HT_MODEL_SEGMENT_SYMBOL);
  int count = 0;
  while (segment != NULL && segment(model->loaded, count, NULL) != NULL) ++count;
  if (count == 0) return HT_OK;
  if ((model->segments = calloc((size_t)count, sizeof *model->segments)) == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory to open %s", model->door->name(model->loaded));
  for (; model->segment_count < count; ++model->segment_count) {
    int own = model->segment_count;
    const char* name = segment(model->loaded, own, NULL);
    ht_status status = open_one(model->pack, name, &model->segments[own], error);
    if (status != HT_OK) return status;
    struct ht_loaded_model* loaded = model->segments[own]->loaded;
    if (segment(loaded, 0, NULL) != NULL) {
      ++model->segment_count; /* it is freed as the others are */
      return ht_refuse(error, HT_PACK_INVALID, "%s is a segment of a model and has segments itself; restore the pack or tune again", name);
    }
    segment(model->loaded, own, loaded);
  }
  return HT_OK;
}

/* A model of that name, without its segments. */
static ht_status open_one(ht_pack* pack, const char* name, ht_model** out, ht_error* error) {
  int index = 0, count = ht_model_count(pack);
  while (index < count && strcmp(ht_model_name(pack, index), name) != 0) ++index;
  if (index == count) return ht_refuse(error, HT_BAD_VALUE, "the pack holds no model %.100s; ht_model_name lists what it holds", name);
  ht_model* model = calloc(1, sizeof *model);
  if (model == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory to open %s", name);
  model->pack = pack;
  model->door = door_of(pack);
  *(void**)&model->expected = dlsym(pack->library, HT_MODEL_EXPECTED_SYMBOL);
  int file = open_weights(pack, name);
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = open_there(pack, model->door, index, file, &model->loaded, &kind, text, sizeof text);
  if (file >= 0) close(file);
  if (rc != 0) {
    free(model);
    return ht_refuse(error, HT_PACK_INVALID, "%s", text);
  }
  atomic_fetch_add_explicit(&pack->holders, 1, memory_order_relaxed);
  *out = model;
  return HT_OK;
}

ht_status ht_model_open(ht_pack* pack, const char* name, ht_model** out, ht_error* error) {
  if (pack == NULL || name == NULL || out == NULL) return ht_refuse(error, HT_BAD_VALUE, "pack, name or out is NULL");
  *out = NULL;
  if (atomic_load_explicit(&pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  ht_model* model = NULL;
  ht_status status = open_one(pack, name, &model, error);
  if (status == HT_OK) status = open_segments(model, error);
  if (status != HT_OK) return ht_model_free(model), status;
  *out = model;
  return HT_OK;
}

void ht_model_free(ht_model* model) {
  if (model == NULL) return;
  model->door->close(model->loaded);
  for (int i = 0; i < model->segment_count; ++i) ht_model_free(model->segments[i]);
  free(model->segments);
  ht_pack_release(model->pack);
  free(model);
}

const char* ht_model_dim(const ht_model* model, int index) { return model == NULL ? NULL : model->door->dim(model->loaded, index); }

static ht_status end_of(const ht_model* model, int output, int index, ht_model_end* out) {
  if (model == NULL || out == NULL) return HT_BAD_VALUE;
  ht_model_facts facts;
  model->door->end(model->loaded, output, index, &facts);
  *out = (ht_model_end){.name = facts.name, .dtype = {(uint8_t)facts.code, (uint8_t)facts.bits, 1}, .ndim = facts.rank};
  for (int a = 0; a < facts.rank; ++a) {
    out->extents[a] = facts.extents[a];
    out->dims[a] = facts.dims[a];
  }
  return facts.name == NULL ? HT_BAD_VALUE : HT_OK;
}

ht_status ht_model_input(const ht_model* model, int index, ht_model_end* out) { return end_of(model, 0, index, out); }

ht_status ht_model_output(const ht_model* model, int index, ht_model_end* out) { return end_of(model, 1, index, out); }

ht_status ht_model_input_default(const ht_model* model, int index, DLTensor* out) {
  const void* (*default_of)(const struct ht_loaded_model*, int, const int64_t**);
  ht_model_end end;
  const int64_t* shape = NULL;
  if (out == NULL || ht_model_input(model, index, &end) != HT_OK) return HT_BAD_VALUE;
  *(void**)&default_of = dlsym(model->pack->library, HT_MODEL_DEFAULT_SYMBOL); /* packs made before it have none */
  const void* elements = default_of == NULL ? NULL : default_of(model->loaded, index, &shape);
  if (elements == NULL) return HT_BAD_VALUE;
  *out = (DLTensor){(void*)elements, {kDLCPU, 0}, end.ndim, end.dtype, (int64_t*)shape, NULL, 0};
  return HT_OK;
}

static ht_status usable(const ht_model* model, const void* one, const void* other, ht_error* error) {
  if (model == NULL || one == NULL || other == NULL) return ht_refuse(error, HT_BAD_VALUE, "model, or an array of the call, is NULL");
  if (atomic_load_explicit(&model->pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  return HT_OK;
}

ht_status ht_model_memory(ht_model* model, const int64_t* dims, int64_t* bytes, ht_error* error) {
  ht_status status = usable(model, dims, bytes, error);
  if (status != HT_OK) return status;
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = model->door->memory(model->loaded, dims, bytes, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_model_expected_us(const ht_model* model, const int64_t* dims, ht_expected_us_t* out, ht_error* error) {
  ht_status status = usable(model, dims, out, error);
  if (status != HT_OK) return status;
  if (model->expected == NULL) return ht_refuse(error, HT_BAD_VALUE, "the pack's models are of before expected times; tune again");
  const char* kind = NULL;
  char text[sizeof error->text];
  double us[3];
  int rc = model->expected(model->loaded, dims, us, &kind, text, sizeof text);
  if (rc == 0) *out = (ht_expected_us_t){us[0], us[1], us[2]};
  return answer(rc, kind, text, error);
}

ht_status ht_model_shapes(ht_model* model, const DLTensor* inputs, int64_t* shapes, ht_error* error) {
  ht_status status = usable(model, inputs, shapes, error);
  if (status != HT_OK) return status;
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = model->door->shapes(model->loaded, inputs, shapes, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_model_run(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, ht_error* error) {
  ht_status status = usable(model, inputs, outputs, error);
  if (status != HT_OK) return status;
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = model->door->run(model->loaded, inputs, outputs, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_model_queue(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, void* stream, ht_error* error) {
  ht_status status = usable(model, inputs, outputs, error);
  if (status != HT_OK) return status;
  int (*queue)(struct ht_loaded_model*, const DLTensor*, const DLTensor*, void*, const char**, char*, size_t);
  *(void**)&queue = dlsym(model->pack->library, HT_MODEL_QUEUE_SYMBOL);
  if (model->pack->device < 0 || queue == NULL) return ht_refuse(error, HT_BAD_VALUE, "the pack computes on the CPU, which has no streams: ht_model_run");
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = queue(model->loaded, inputs, outputs, stream, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

typedef struct {
  ht_model_place_fn place;
  void* arg;
  int refused;
} placing;

static void* place_one(void* arg, int output, const DLTensor* wanted) {
  placing* own = arg;
  void* found = own->place(own->arg, output, wanted);
  int64_t count = 1;
  for (int a = 0; a < wanted->ndim; ++a) count *= wanted->shape[a];
  own->refused |= found == NULL && count > 0;
  return found;
}

typedef int (*placed_fn)(struct ht_loaded_model*, const DLTensor*, const uint64_t*, ht_model_placing, void*, int64_t*, const char**, char*, size_t);
typedef int (*queued_fn)(struct ht_loaded_model*, const DLTensor*, const uint64_t*, ht_model_placing, void*, void*, int64_t*, const char**, char*, size_t);

/* `stream`: NULL, or where the stream is told that all is queued on. */
static ht_status run_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg, void* const* stream,
                            ht_error* error) {
  if (place == NULL) return ht_refuse(error, HT_BAD_VALUE, "place is NULL");
  ht_status status = usable(model, inputs, inputs, error);
  if (status != HT_OK) return status;
  void* found = dlsym(model->pack->library, stream == NULL ? HT_MODEL_PLACED_SYMBOL : HT_MODEL_QUEUE_PLACED_SYMBOL);
  if (stream != NULL && model->pack->device < 0) return ht_refuse(error, HT_BAD_VALUE, "the pack computes on the CPU, which has no streams: ht_model_run_placed");
  if (found == NULL) return ht_refuse(error, HT_BAD_VALUE, "the pack's models are of before calls that place outputs; tune again");
  placed_fn run;
  queued_fn queue;
  *(void**)&run = found;
  *(void**)&queue = found;
  placing own = {place, arg, 0};
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = stream == NULL ? run(model->loaded, inputs, seed, place_one, &own, NULL, &kind, text, sizeof text)
                          : queue(model->loaded, inputs, seed, place_one, &own, *stream, NULL, &kind, text, sizeof text);
  return rc != 0 && own.refused ? ht_refuse(error, HT_NO_MEMORY, "%s", text) : answer(rc, kind, text, error);
}

ht_status ht_model_run_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg, ht_error* error) {
  return run_placed(model, inputs, seed, place, arg, NULL, error);
}

ht_status ht_model_queue_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg, void* stream,
                                ht_error* error) {
  return run_placed(model, inputs, seed, place, arg, &stream, error);
}

ht_status ht_model_limit(ht_model* model, int64_t max_request_bytes, ht_error* error) {
  if (model == NULL || max_request_bytes < 0) return ht_refuse(error, HT_BAD_VALUE, "model is NULL or max_request_bytes is negative");
  void (*limit)(struct ht_loaded_model*, int64_t);
  *(void**)&limit = dlsym(model->pack->library, HT_MODEL_LIMIT_SYMBOL);
  if (limit == NULL) return ht_refuse(error, HT_BAD_VALUE, "the pack's models are of before requests could be bounded; tune again");
  limit(model->loaded, max_request_bytes);
  for (int i = 0; i < model->segment_count; ++i) limit(model->segments[i]->loaded, max_request_bytes);
  return HT_OK;
}

/* Of a chain: its own, and what its segments hold; calls are its own. */
ht_status ht_model_held(ht_model* model, ht_model_held_t* out) {
  if (model == NULL || out == NULL) return HT_BAD_VALUE;
  int64_t found[5];
  model->door->held(model->loaded, found);
  *out = (ht_model_held_t){found[0], found[1], found[2], found[3], found[4]};
  for (int i = 0; i < model->segment_count; ++i) {
    ht_model_held_t of;
    ht_model_held(model->segments[i], &of);
    out->plans += of.plans;
    out->contexts += of.contexts;
    out->arena_bytes += of.arena_bytes;
    out->packed_bytes += of.packed_bytes;
  }
  return HT_OK;
}

void ht_model_trim(ht_model* model) {
  if (model == NULL) return;
  model->door->trim(model->loaded);
  for (int i = 0; i < model->segment_count; ++i) ht_model_trim(model->segments[i]);
}
