/* Parameters of a model's configuration, in the JSON that the server makes of config.pbtxt. */
#include <string.h>

#include "backend.h"

#define MAX_DEPTH 64

typedef struct {
  const char *at, *end;
} text;

static void blank(text* t) {
  while (t->at < t->end && strchr(" \t\r\n", *t->at) != NULL && *t->at != 0) ++t->at;
}

/* A string without its quotes; 0: there is none. Escapes stay as they are. */
static int string(text* t, const char** first, size_t* size) {
  blank(t);
  if (t->at == t->end || *t->at != '"') return 0;
  *first = ++t->at;
  for (; t->at < t->end && *t->at != '"'; ++t->at)
    if (*t->at == '\\') ++t->at;
  if (t->at >= t->end) return 0;
  *size = (size_t)(t->at++ - *first);
  return 1;
}

/* Go behind a value, whatever it is. */
static int skip(text* t) {
  int depth = 0;
  const char* first;
  size_t size;
  do {
    blank(t);
    if (t->at == t->end) return 0;
    if (*t->at == '"') {
      if (!string(t, &first, &size)) return 0;
    } else if (*t->at == '{' || *t->at == '[') {
      if (++depth > MAX_DEPTH) return 0;
      ++t->at;
    } else if (*t->at == '}' || *t->at == ']') {
      --depth;
      ++t->at;
    } else if (*t->at == ',' || *t->at == ':') {
      if (depth == 0) return 0;
      ++t->at;
    } else {
      const char* before = t->at;
      while (t->at < t->end && strchr(",:{}[]\" \t\r\n", *t->at) == NULL) ++t->at;
      if (t->at == before) return 0;
    }
  } while (depth > 0);
  return depth == 0;
}

/* Go to the value of a member of the object here; 0: it has no such member, or is no object. */
static int member(text* t, const char* name) {
  const char* key;
  size_t size;
  blank(t);
  if (t->at == t->end || *t->at != '{') return 0;
  ++t->at;
  while (string(t, &key, &size)) {
    blank(t);
    if (t->at == t->end || *t->at != ':') return 0;
    ++t->at;
    blank(t);
    if (size == strlen(name) && memcmp(key, name, size) == 0) return 1;
    if (!skip(t)) return 0;
    blank(t);
    if (t->at == t->end || *t->at != ',') return 0;
    ++t->at;
  }
  return 0;
}

int config_parameter(const char* json, size_t size, const char* name, char* out, size_t room) {
  text t = {json, json + size};
  const char* first;
  size_t length;
  if (!member(&t, "parameters") || !member(&t, name) || !member(&t, "string_value") || !string(&t, &first, &length)) return 0;
  if (length >= room || memchr(first, '\\', length) != NULL) return -1;
  memcpy(out, first, length);
  out[length] = 0;
  return 1;
}
