/* A chain of a pack, linked into one program with the runtime. Built with ASan and UBSan; arrays that the caller gives are of the exact
 * size. The models are NAME..., the chain the last; FOLDER holds their files.
 *   chains schedules COUNT SEED FOLDER NAME...   whatever the reader accepts must run inside its arrays
 *   chains steady COUNT SEED FOLDER NAME...      a call of sizes that were seen takes no memory, and a seed gives the same again
 *   chains callers COUNT SEED FOLDER NAME...     four threads at once get what one got */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bytecodes.h"

#define LARGEST ((size_t)1 << 24)
#define ROOM 512
static uint64_t state;
static uint64_t draw(void) { /* splitmix64 (Steele et al. 2014) */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static atomic_int taken;
void* __real_malloc(size_t size);
void* __wrap_malloc(size_t size);
void* __wrap_malloc(size_t size) { return atomic_fetch_add(&taken, 1), __real_malloc(size); }
void* __real_calloc(size_t count, size_t size);
void* __wrap_calloc(size_t count, size_t size);
void* __wrap_calloc(size_t count, size_t size) { return atomic_fetch_add(&taken, 1), __real_calloc(count, size); }
void* __real_mmap(void* at, size_t size, int protection, int flags, int file, off_t from);
void* __wrap_mmap(void* at, size_t size, int protection, int flags, int file, off_t from);
void* __wrap_mmap(void* at, size_t size, int protection, int flags, int file, off_t from) {
  if (size > LARGEST && file < 0) return MAP_FAILED; /* too large to try */
  return atomic_fetch_add(&taken, 1), __real_mmap(at, size, protection, flags, file, from);
}
void* __real_mremap(void* at, size_t size, size_t to, int flags, ...);
void* __wrap_mremap(void* at, size_t size, size_t to, int flags, void* place);
void* __wrap_mremap(void* at, size_t size, size_t to, int flags, void* place) {
  return to > LARGEST ? MAP_FAILED : (atomic_fetch_add(&taken, 1), __real_mremap(at, size, to, flags, place));
}

typedef struct {
  void* blocks[ROOM];
  size_t bytes[ROOM];
  int twice;
} answer;

static void* place(void* arg, int output, const DLTensor* wanted) {
  answer* a = arg;
  size_t bytes = wanted->dtype.bits / 8;
  for (int i = 0; i < wanted->ndim; ++i)
    if ((size_t)wanted->shape[i] > LARGEST || (bytes *= (size_t)wanted->shape[i]) > LARGEST) return NULL;
  if (output < 0 || output >= ROOM || a->blocks[output] != NULL) return a->twice = 1, NULL;
  a->bytes[output] = bytes;
  return a->blocks[output] = __real_malloc(bytes + (bytes == 0));
}

static void let_go(answer* a) {
  for (int i = 0; i < ROOM; ++i) free(a->blocks[i]);
  memset(a, 0, sizeof *a);
}

/* x of so many rows, and "long", which tells a length, where there is one. */
static int call(ht_model* m, int64_t rows, int64_t length, uint64_t seed, answer* a, ht_error* error) {
  DLTensor inputs[HT_MODEL_ENDS];
  int64_t shapes[HT_MODEL_ENDS][HT_MODEL_AXES];
  void* blocks[HT_MODEL_ENDS] = {NULL};
  for (int i = 0; i < m->input_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->inputs[i].tensor];
    int64_t count = 1;
    for (int k = 0; k < t->rank; ++k) {
      const ht_size_line* line = &m->sizes[t->shape[k]];
      shapes[i][k] = line->op == SIZE_NUMBER && line->number >= 0 && line->number < 64 ? line->number : rows;
      count *= shapes[i][k];
    }
    if (count > 1 << 16) count = shapes[i][0] = 0;
    inputs[i] = (DLTensor){NULL, {kDLCPU, 0}, t->rank, {t->code, t->bits, 1}, shapes[i], NULL, 0};
    inputs[i].data = blocks[i] = __real_malloc((size_t)count * t->bits / 8 + (count == 0));
    memset(blocks[i], 0, (size_t)count * t->bits / 8);
    for (int64_t k = 0; k < count; ++k) {
      if (t->code == kDLFloat && t->bits == 32) ((float*)blocks[i])[k] = (float)((k * 7 + rows) % 11) - 5;
      else memcpy((char*)blocks[i] + k * t->bits / 8, &length, t->bits / 8 < 8 ? t->bits / 8 : 8);
    }
  }
  int rc = ht_model_run_placed(m, inputs, &seed, place, a, NULL, NULL, error);
  for (int i = 0; i < m->input_count; ++i) free(blocks[i]);
  return rc;
}

static int same(const answer* a, const answer* b) {
  for (int i = 0; i < ROOM; ++i)
    if (a->bytes[i] != b->bytes[i] || (a->bytes[i] > 0 && memcmp(a->blocks[i], b->blocks[i], a->bytes[i]) != 0)) return 0;
  return 1;
}

static ht_model* opened(const model_files* files) {
  ht_error error;
  ht_model* m = open_files(files, 2, &error);
  if (m == NULL) printf("%s\n", error.text), exit(1);
  if (files->weights >= 0) close(files->weights);
  return m;
}

static int model_count;

static void link_all(ht_model* m, ht_model** models) {
  const char* name;
  for (int i = 0; (name = ht_chain_segment(m, i, NULL)) != NULL; ++i)
    for (int k = 0; k + 1 < model_count; ++k)
      if (strcmp(name, models[k]->name) == 0) ht_chain_segment(m, i, models[k]);
}

static uint64_t checksum(const int64_t* words, int64_t count) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (int64_t i = HT_MODEL_HEAD; i < count; ++i) sum = (sum ^ (uint64_t)words[i]) * 0x100000001b3u;
  return sum;
}

static int schedules(int tries, ht_model** models, const model_files* source) {
  int refused = 0, ran = 0, failed = 0;
  answer a = {0};
  for (int i = 0; i < tries; ++i) {
    const int64_t odd[] = {-1, 0, 1, 2, 3, 8, 1 << 20, INT64_MAX, INT64_MIN, 1LL << 40};
    int64_t* words = __real_malloc((size_t)source->count * 8);
    memcpy(words, source->words, (size_t)source->count * 8);
    for (uint64_t changes = 1 + draw() % 3; changes > 0; --changes) {
      int64_t at = HT_MODEL_HEAD + (int64_t)(draw() % (uint64_t)(source->count - HT_MODEL_HEAD));
      words[at] = draw() % 2 ? (int64_t)((uint64_t)words[at] + draw() % 5 - 2) : draw() % 4 ? (int64_t)(draw() % 24) : odd[draw() % (sizeof odd / sizeof *odd)];
    }
    words[3] = (int64_t)checksum(words, source->count);
    ht_error error;
    ht_model* m = ht_model_open(words, source->count, -1, 1, 0, 1, &error);
    refused += m == NULL;
    if (m != NULL && m->chained) {
      link_all(m, models);
      for (int k = 0; k < 3; ++k) {
        int rc = call(m, (int64_t)(draw() % 12), (int64_t)(draw() % 9) - 1, draw(), &a, &error);
        rc == 0 ? ++ran : ++failed;
        if (a.twice) return printf("an output is placed twice\n"), 1;
        let_go(&a);
      }
      int64_t dims[64] = {3, 3, 3}, bytes;
      if (m->dim_count <= 64) ht_model_memory(m, dims, &bytes, &error);
    }
    if (m != NULL) ht_model_close(m);
    free(words);
  }
  printf("refused=%d ran=%d failed=%d\n", refused > 0, ran > 0, failed > 0);
  return 0;
}

static int steady(ht_model* m) {
  static answer first, again;
  ht_error error;
  int before = 0;
  for (int i = 0; i < 3; ++i) {
    let_go(&again);
    before = atomic_load(&taken);
    if (call(m, 5, 7, 9, i == 0 ? &first : &again, &error) != 0) return printf("%s\n", error.text), 1;
  }
  int64_t held[HT_MODEL_FACTS];
  int took = atomic_load(&taken) - before;
  ht_model_held(m, held);
  printf("same=%d taken=%d calls=%d contexts=%d", same(&first, &again), took, (int)held[0], (int)held[2]);
  ht_model_trim(m);
  ht_model_held(m, held);
  printf(" after_trim=%d negative=%d %s\n", (int)held[3], call(m, 5, -4, 9, &again, &error), error.text);
  let_go(&first), let_go(&again);
  return 0;
}

typedef struct {
  ht_model* m;
  const answer* want;
  int wrong;
} caller;

static void* calling(void* arg) {
  caller* c = arg;
  answer* a = __real_calloc(1, sizeof *a);
  ht_error error;
  for (int i = 0; i < 50; ++i) {
    c->wrong += call(c->m, 5, 7, 9, a, &error) != 0 || !same(a, c->want);
    let_go(a);
  }
  free(a);
  return NULL;
}

static int callers(ht_model* m) {
  static answer want;
  ht_error error;
  pthread_t threads[4];
  caller all[4];
  int wrong = call(m, 5, 7, 9, &want, &error);
  for (int i = 0; i < 4; ++i) all[i] = (caller){m, &want, 0}, pthread_create(&threads[i], NULL, calling, &all[i]);
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL), wrong += all[i].wrong;
  let_go(&want);
  return printf("wrong=%d\n", wrong), wrong != 0;
}

int main(int argc, char** argv) {
  ht_model* models[64];
  model_files files[64];
  if (argc < 6 || (model_count = argc - 5) > 64) return 2;
  state = (uint64_t)atoll(argv[3]);
  for (int i = 0; i < model_count; ++i) files[i] = files_of(argv[4], argv[5 + i]), models[i] = opened(&files[i]);
  ht_model* chain = models[model_count - 1];
  link_all(chain, models);
  int rc = strcmp(argv[1], "schedules") == 0 ? schedules(atoi(argv[2]), models, &files[model_count - 1]) : strcmp(argv[1], "steady") == 0 ? steady(chain) : callers(chain);
  for (int i = model_count - 1; i >= 0; --i) ht_model_close(models[i]), free(files[i].words);
  return rc;
}
