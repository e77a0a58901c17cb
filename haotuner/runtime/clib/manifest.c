/* A strict reader of JSON (RFC 8259) that walks the whole text and keeps few facts. Never reads beyond `end`. */
#include "manifest.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32 /* as haotuner/pack/manifest.py */

typedef struct {
  const char* at;
  const char* end;
  const char* wrong; /* the first problem; everything stops at it */
} reader;

static int fail(reader* r, const char* words) {
  if (r->wrong == NULL) r->wrong = words;
  return 0;
}

static int peek(const reader* r) { return r->at < r->end ? (unsigned char)*r->at : -1; }

static void blank(reader* r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) ++r->at;
}

static int expect(reader* r, char c) {
  blank(r);
  if (peek(r) != c) return fail(r, "it is not valid JSON");
  ++r->at;
  return 1;
}

/* A text; copied into out (of `room` bytes) when out is not NULL. One with escapes is skipped, never copied. */
static int text(reader* r, char* out, size_t room) {
  if (!expect(r, '"')) return 0;
  const char* first = r->at;
  int escaped = 0;
  for (int c; (c = peek(r)) != '"'; ++r->at) {
    if (c < 0x20) return fail(r, "it is not valid JSON"); /* control characters, and the end (-1) */
    if (c != '\\') continue;
    escaped = 1;
    ++r->at;
    if (peek(r) < 0x20) return fail(r, "it is not valid JSON");
  }
  size_t size = (size_t)(r->at - first);
  ++r->at;
  if (out == NULL) return 1;
  if (escaped || size >= room || memchr(first, 0, size) != NULL) return fail(r, "a name or hash in it is not plain text");
  memcpy(out, first, size);
  out[size] = 0;
  return 1;
}

static int word(reader* r) { /* a number, true, false, null */
  const char* first = r->at;
  for (int c; (c = peek(r)), (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' || c == 'E';)
    ++r->at;
  return r->at > first ? 1 : fail(r, "it is not valid JSON");
}

typedef int (*member)(reader* r, const char* key, int depth, ht_manifest* out, int* seen);

static int value(reader* r, int depth);

/* An object; `each` takes a member it knows (1), leaves it to be skipped (0), or fails. */
static int object(reader* r, int depth, member each, ht_manifest* out, int* seen) {
  if (depth > MAX_DEPTH) return fail(r, "it is nested too deeply");
  if (!expect(r, '{')) return 0;
  blank(r);
  if (peek(r) == '}') return ++r->at, 1;
  for (;;) {
    char key[HT_LEVEL_NAME];
    blank(r);
    const char* before = r->at;
    if (!text(r, key, sizeof key)) { /* a long or escaped key is none of ours */
      if (r->wrong == NULL || strcmp(r->wrong, "it is not valid JSON") == 0) return 0;
      r->wrong = NULL;
      r->at = before;
      key[0] = 0;
      if (!text(r, NULL, 0)) return 0;
    }
    if (!expect(r, ':')) return 0;
    blank(r);
    int taken = each != NULL && each(r, key, depth, out, seen);
    if (r->wrong != NULL || (!taken && !value(r, depth + 1))) return 0;
    blank(r);
    if (peek(r) == ',') {
      ++r->at;
      continue;
    }
    return expect(r, '}');
  }
}

static int array(reader* r, int depth) {
  if (depth > MAX_DEPTH) return fail(r, "it is nested too deeply");
  ++r->at;
  blank(r);
  if (peek(r) == ']') return ++r->at, 1;
  for (;;) {
    if (!value(r, depth + 1)) return 0;
    blank(r);
    if (peek(r) != ',') return expect(r, ']');
    ++r->at;
  }
}

static int value(reader* r, int depth) {
  blank(r);
  switch (peek(r)) {
    case '{': return object(r, depth, NULL, NULL, NULL);
    case '[': return array(r, depth);
    case '"': return text(r, NULL, 0);
    default: return word(r);
  }
}

const char* const ht_levels[HT_LEVELS] = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

enum { SEEN_SCHEMA = 1, SEEN_FILES = 2, SEEN_DEVICE = 4, SEEN_ARCH = 8, SEEN_FILE = 16, SEEN_LEVELS = 32, SEEN_LEVEL = 64,
       SEEN_DRIVER = SEEN_LEVEL << HT_LEVELS, SEEN_MODELS = SEEN_DRIVER << 1 }; /* what every pack must have, one of each level, what it may have */

static int once(reader* r, int* seen, int what) {
  if (*seen & what) return fail(r, "a key is given twice");
  *seen |= what;
  return 1;
}

static int file(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  (void)depth;
  if (*seen & SEEN_FILE) return fail(r, "files must name exactly one library");
  *seen |= SEEN_FILE;
  if (strlen(key) >= sizeof out->library) return fail(r, "its library is not lib/<16 hex digits>.so");
  strcpy(out->library, key);
  return text(r, out->sha256, sizeof out->sha256);
}

static int number(reader* r, double* out) {
  char digits[40];
  const char* first = r->at;
  if (!word(r)) return 0;
  size_t size = (size_t)(r->at - first);
  if (size >= sizeof digits) return 1;
  memcpy(digits, first, size);
  digits[size] = 0;
  *out = strtod(digits, NULL); /* null is 0: not known */
  return 1;
}

static int device(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  (void)depth;
  if (strcmp(key, "id") == 0 && peek(r) == '"') return text(r, out->id, sizeof out->id);
  if (strcmp(key, "compute_units") == 0 && peek(r) != '"') return number(r, &out->units);
  if (strcmp(key, "memory_gbps") == 0 && peek(r) != '"') return number(r, &out->gbps);
  return strcmp(key, "arch") == 0 && once(r, seen, SEEN_ARCH) && text(r, out->arch, sizeof out->arch);
}

static int driver(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  (void)depth, (void)seen;
  return strcmp(key, "version") == 0 && peek(r) != '"' && number(r, &out->driver);
}

/* sm_90a/DEVICE: a folder in a folder, and nothing else. */
static int is_placed(const char* name) {
  size_t digits = strncmp(name, "sm_", 3) == 0 ? strspn(name + 3, "0123456789") : 0;
  const char* rest = name + 3 + digits;
  if (digits < 2) return 0;
  if (*rest == 'a' || *rest == 'f') ++rest;
  if (*rest != '/') return 0;
  size_t size = strspn(++rest, "abcdefghijklmnopqrstuvwxyz0123456789-");
  return size > 0 && rest[size] == 0;
}

static int level(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  (void)depth;
  for (int i = 0; i < HT_LEVELS; ++i)
    if (strcmp(key, ht_levels[i]) == 0) return once(r, seen, SEEN_LEVEL << i) && text(r, out->levels[i], sizeof out->levels[i]);
  if (strlen(key) < HT_LEVEL_NAME && is_placed(key)) {
    if (out->placed_count == HT_PLACED_LEVELS) return fail(r, "it names more levels than any pack has");
    strcpy(out->placed[out->placed_count].name, key);
    *seen |= SEEN_LEVEL;
    return text(r, out->placed[out->placed_count++].sha256, sizeof out->placed->sha256);
  }
  return fail(r, "it names a level that neither x86-64 nor a device has");
}

static int hex(const char* text, size_t count) { return strspn(text, "0123456789abcdef") >= count; }

static int model(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  (void)depth, (void)seen;
  ht_manifest_model* entry = &out->models[out->model_count];
  if (strcmp(key, "source_sha256") == 0 && peek(r) == '"') return text(r, entry->source, sizeof entry->source);
  if (strcmp(key, "subgraph_of_sha256") == 0 && peek(r) == '"') return entry->is_subgraph = 1, text(r, entry->source, sizeof entry->source);
  return strcmp(key, "bytecode_sha256") == 0 && peek(r) == '"' && text(r, entry->sha256, sizeof entry->sha256);
}

/* Of a model with a file of bytecode: its name, the file's hash, and that of the model's source. */
static int models(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  const size_t size = strlen(key);
  if (size == 0 || size >= HT_MODEL_NAME || strspn(key, letters) != size || *key == '.' || *key == '-') return fail(r, "a model has a name that none may have");
  for (int i = 0; i < out->model_count; ++i)
    if (strcmp(out->models[i].name, key) == 0) return fail(r, "a model is named twice");
  if (out->model_count == HT_MODELS_MOST) return fail(r, "it names more models than any pack has");
  if ((out->model_count & (out->model_count + 1)) == 0) { /* one less than a power of two: full; 0, 1, 3, 7 ... entries beside the new one */
    ht_manifest_model* grown = realloc(out->models, 2 * ((size_t)out->model_count + 1) * sizeof *grown);
    if (grown == NULL) return fail(r, "there is no memory for the names of its models");
    out->models = grown;
  }
  ht_manifest_model* entry = &out->models[out->model_count];
  memset(entry, 0, sizeof *entry);
  strcpy(entry->name, key);
  if (!object(r, depth + 1, model, out, seen)) return 0;
  if (entry->sha256[0] == 0) return 1;
  if (strlen(entry->sha256) != 64 || !hex(entry->sha256, 64)) return fail(r, "the sha256 of a model's bytecode is not 64 hex digits");
  if (entry->source[0] != 0 && (strlen(entry->source) != 64 || !hex(entry->source, 64))) return fail(r, "the sha256 of a model's source is not 64 hex digits");
  return ++out->model_count, 1;
}

void ht_manifest_clear(ht_manifest* manifest) {
  free(manifest->models);
  manifest->models = NULL;
  manifest->model_count = 0;
}

static int top(reader* r, const char* key, int depth, ht_manifest* out, int* seen) {
  if (strcmp(key, "files") == 0) return once(r, seen, SEEN_FILES) && object(r, depth + 1, file, out, seen);
  if (strcmp(key, "device") == 0) return once(r, seen, SEEN_DEVICE) && object(r, depth + 1, device, out, seen);
  if (strcmp(key, "driver") == 0) return once(r, seen, SEEN_DRIVER) && object(r, depth + 1, driver, out, seen);
  if (strcmp(key, "models") == 0) return once(r, seen, SEEN_MODELS) && object(r, depth + 1, models, out, seen);
  if (strcmp(key, "levels") == 0) return once(r, seen, SEEN_LEVELS) && object(r, depth + 1, level, out, seen);
  if (strcmp(key, "schema") != 0 || !once(r, seen, SEEN_SCHEMA)) return 0;
  const char* first = r->at;
  if (!word(r)) return 0;
  out->schema = r->at - first == 1 ? *first - '0' : 0;
  return out->schema >= 1 && out->schema <= HT_MANIFEST_SCHEMA ? 1 : fail(r, "it has another schema than this library reads");
}

static const char* levels_problem(const ht_manifest* out, int seen) {
  if ((seen & (SEEN_SCHEMA | SEEN_FILES)) != SEEN_SCHEMA) return "levels stand without a schema, or beside files";
  if (seen < SEEN_LEVEL) return "levels must name at least one instruction set";
  for (int i = 0; i < HT_LEVELS; ++i)
    if (out->levels[i][0] != 0 && (strlen(out->levels[i]) != 64 || !hex(out->levels[i], 64)))
      return "the sha256 of a level is not 64 hex digits";
  for (int i = 0; i < out->placed_count; ++i)
    if (strlen(out->placed[i].sha256) != 64 || !hex(out->placed[i].sha256, 64)) return "the sha256 of a level is not 64 hex digits";
  return NULL;
}

const char* ht_manifest_read(const char* content, size_t size, ht_manifest* out) {
  reader r = {content, content + size, NULL};
  int seen = 0;
  memset(out, 0, sizeof *out);
  if (!object(&r, 0, top, out, &seen)) return r.wrong != NULL ? r.wrong : "it is not valid JSON";
  blank(&r);
  if (r.at != r.end) return "something follows the JSON";
  seen &= ~(SEEN_DRIVER | SEEN_MODELS);
  if (seen & SEEN_LEVELS) return levels_problem(out, seen);
  if (seen != (SEEN_SCHEMA | SEEN_FILES | SEEN_DEVICE | SEEN_ARCH | SEEN_FILE)) return "schema, files or device are missing";
  const char* l = out->library;
  if (strlen(l) != 23 || strncmp(l, "lib/", 4) != 0 || !hex(l + 4, 16) || strcmp(l + 20, ".so") != 0)
    return "its library is not lib/<16 hex digits>.so";
  if (strlen(out->sha256) != 64 || !hex(out->sha256, 64)) return "its sha256 is not 64 hex digits";
  return NULL;
}
