/* Files in which a model's tensors lie, read from the model's bytes: ONNX's protobuf messages, as far as they lead to tensors. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "provider.h"

#define MOST_DEPTH 100 /* of messages in messages: protobuf's own limit */
#define EXTERNAL 1     /* TensorProto.DataLocation */

enum { MODEL, FUNCTION, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE };

static const struct { /* a field of a message whose value is another message */
  int message, field, inner;
} inner_messages[] = {
    {MODEL, 7, GRAPH},      {MODEL, 25, FUNCTION},   {FUNCTION, 7, NODE},    {GRAPH, 1, NODE},        {GRAPH, 5, TENSOR},
    {GRAPH, 15, SPARSE},    {NODE, 5, ATTRIBUTE},    {ATTRIBUTE, 5, TENSOR}, {ATTRIBUTE, 6, GRAPH},   {ATTRIBUTE, 10, TENSOR},
    {ATTRIBUTE, 11, GRAPH}, {ATTRIBUTE, 22, SPARSE}, {ATTRIBUTE, 23, SPARSE}, {SPARSE, 1, TENSOR},    {SPARSE, 2, TENSOR}};

typedef struct {
  const unsigned char *at, *end;
} bytes;

typedef struct { /* of a message: its number, and its value: a number, or bytes */
  int number, is_bytes;
  uint64_t value;
  bytes inner;
} field;

static int read_varint(bytes* from, uint64_t* out) {
  *out = 0;
  for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
    *out |= (uint64_t)(*from->at & 0x7f) << shift;
    if ((*from->at++ & 0x80) == 0) return 1;
  }
  return 0;
}

/* The next field; 0 at the end of the message, or where it is damaged: then from->at is not from->end. */
static int read_field(bytes* from, field* out) {
  uint64_t tag, size = 0;
  const unsigned char* first = from->at;
  if (from->at == from->end) return 0;
  *out = (field){0};
  int is_sound = read_varint(from, &tag);
  switch (is_sound ? tag & 7 : 7) {
    case 0: is_sound = read_varint(from, &out->value); break;
    case 1: size = 8; break;
    case 2: is_sound = out->is_bytes = read_varint(from, &size); break;
    case 5: size = 4; break;
    default: is_sound = 0;
  }
  if (!is_sound || size > (uint64_t)(from->end - from->at) || tag >> 3 > INT32_MAX) return from->at = first, 0;
  out->number = (int)(tag >> 3);
  out->inner = (bytes){from->at, from->at + size};
  from->at += size;
  return 1;
}

static int equals(bytes text, const char* other) { return (size_t)(text.end - text.at) == strlen(other) && memcmp(text.at, other, strlen(other)) == 0; }

static const char* add_name(bytes name, external_files* out) {
  for (int i = 0; i < out->count; ++i)
    if (equals(name, out->names[i])) return NULL;
  if (name.at == name.end || memchr(name.at, 0, (size_t)(name.end - name.at)) != NULL) return "a tensor's file has no name";
  char** grown = realloc(out->names, ((size_t)out->count + 1) * sizeof *grown);
  if (grown == NULL) return "there is no memory for names of files";
  out->names = grown;
  if ((grown[out->count] = strndup((const char*)name.at, (size_t)(name.end - name.at))) == NULL) return "there is no memory for names of files";
  ++out->count;
  return NULL;
}

/* The value of `location` in an entry of TensorProto.external_data; empty: another entry. */
static bytes location_of(bytes entry) {
  bytes value = {0};
  int is_location = 0;
  for (field item; read_field(&entry, &item);) {
    if (item.number == 1) is_location = equals(item.inner, "location");
    if (item.number == 2) value = item.inner;
  }
  return is_location ? value : (bytes){0};
}

static const char* read_message(int message, bytes from, int depth, external_files* out) {
  const char* wrong = depth > MOST_DEPTH ? "its messages are nested too deep" : NULL;
  int is_external = 0;
  bytes name = {0};
  for (field item; wrong == NULL && read_field(&from, &item);) {
    if (message == TENSOR && item.number == 14) is_external = item.value == EXTERNAL;
    if (message == TENSOR && item.number == 13 && item.is_bytes) {
      const bytes location = location_of(item.inner);
      if (location.at != NULL) name = location;
    }
    for (size_t i = 0; wrong == NULL && item.is_bytes && i < sizeof inner_messages / sizeof *inner_messages; ++i)
      if (inner_messages[i].message == message && inner_messages[i].field == item.number) wrong = read_message(inner_messages[i].inner, item.inner, depth + 1, out);
  }
  if (wrong == NULL && from.at != from.end) return "it is no ONNX model, or was cut short";
  return wrong == NULL && is_external && name.at != NULL ? add_name(name, out) : wrong; /* without a location it is nobody's to read */
}

static int by_bytes(const void* a, const void* b) { return strcmp(*(char* const*)a, *(char* const*)b); }

const char* external_files_read(const unsigned char* model, size_t size, external_files* out) {
  *out = (external_files){0};
  const char* wrong = read_message(MODEL, (bytes){model, model + size}, 0, out);
  if (out->count > 0) qsort(out->names, (size_t)out->count, sizeof *out->names, by_bytes);
  return wrong;
}

void external_files_clear(external_files* all) {
  for (int i = 0; i < all->count; ++i) free(all->names[i]);
  free(all->names);
}
