/* Words of a schedule, each held against its bounds as it is read (read.c, read_chain.c). */
#ifndef HT_MODEL_READER_H_
#define HT_MODEL_READER_H_

#include <stdlib.h>
#include <string.h>

#include "model/model.h"

typedef struct {
  const int64_t *first, *at, *end;
  ht_error* error;
  int bad;
} ht_reader;

static inline int64_t fail(ht_reader* r, const char* words) {
  if (!r->bad) ht_refuse(r->error, "RuntimeError", "the model's schedule is damaged at word %lld: %s; restore the pack or tune again", (long long)(r->at - r->first), words);
  r->bad = 1;
  return 0;
}

static inline int64_t word(ht_reader* r, int64_t low, int64_t high) {
  if (r->bad) return 0;
  if (r->at >= r->end) return fail(r, "it ends too early");
  if (*r->at < low || *r->at > high) return fail(r, "a number is out of its range");
  return *r->at++;
}

static inline int32_t below(ht_reader* r, int32_t limit) { return (int32_t)word(r, 0, (int64_t)limit - 1); }

/* How many of what takes `least` words each: never more than the rest can hold, so that no table is made for a damaged count. */
static inline int32_t count_of(ht_reader* r, int64_t least) {
  int64_t rest = r->end - r->at;
  return (int32_t)word(r, 0, rest / least < INT32_MAX / 4 ? rest / least : INT32_MAX / 4);
}

static inline const int64_t* many(ht_reader* r, int64_t count, int64_t low, int64_t high) {
  const int64_t* found = r->at;
  for (int64_t i = 0; i < count && !r->bad; ++i) word(r, low, high);
  return found;
}

static inline const char* text(ht_reader* r) {
  int64_t size = word(r, 0, 4096), words = size / 8 + 1;
  if (r->bad || words > r->end - r->at) return fail(r, "a name is cut"), "";
  const char* found = (const char*)r->at;
  if (memchr(found, 0, (size_t)size + 1) != found + size) return fail(r, "a name is no text"), "";
  r->at += words;
  return found;
}

static inline void* table(ht_reader* r, int64_t count, size_t size) { /* of one at least, so that NULL means no memory */
  void* found = calloc((size_t)count + 1, size);
  if (found == NULL && !r->bad) {
    ht_refuse(r->error, "RuntimeError", "no memory to open a model");
    r->bad = 1;
  }
  return found;
}

/* Whether a tensor is there to be read: a weight, an input (1), or made by the way whose steps are read. */
static inline int there(const ht_model* m, const char* made, int32_t tensor) { return made[tensor] == 1 || made[tensor] == m->way_count + 2; }

/* The steps of a chain, or of the body of a loop that lies `depth` loops deep; `made`: of each tensor, as of `there`. */
void ht_read_chain(ht_reader* r, ht_model* m, char* made, int depth);

void ht_read_expected_times(ht_reader* r, ht_model* m);

#endif /* HT_MODEL_READER_H_ */
