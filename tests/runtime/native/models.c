/* A whole model of a pack, linked into one program with the runtime: damaged schedules, odd feeds, callers at once, and no memory
 * taken by a size that was seen. Built with ASan and UBSan; arrays are of the exact size, so that any step beyond is seen.
 *   models schedules COUNT SEED FOLDER NAME   whatever the reader accepts must run inside its arrays
 *   models flips 1 SEED FOLDER NAME           bytecode with any byte changed, or cut anywhere, is refused
 *   models feeds COUNT SEED FOLDER NAME       odd tensors are refused, others answered
 *   models steady 1 0 FOLDER NAME             the second call of a size takes no memory
 *   models callers COUNT SEED FOLDER NAME     four threads at once get what one got */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bytecodes.h"

#define LARGEST (1 << 22)
static uint64_t state;
static uint64_t draw(void) { /* splitmix64 (Steele et al. 2014) */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static int stub; /* of a damaged schedule loops write what they should, and read nothing: the C of a group trusts its sizes */
int __real_ht_group_run(const ht_group* group, const int64_t* sizes, void* const* tensors, int threads);
int __wrap_ht_group_run(const ht_group* group, const int64_t* sizes, void* const* tensors, int threads);
int __wrap_ht_group_run(const ht_group* group, const int64_t* sizes, void* const* tensors, int threads) {
  if (!stub) return __real_ht_group_run(group, sizes, tensors, threads);
  const int32_t* extents = group->shapes;
  for (int out = 0; out < group->outputs; ++out) {
    int64_t points = 1;
    for (int a = 0; a < group->ranks[out]; ++a) points *= sizes[*extents++];
    if (points > 0) memset(tensors[group->tensors - group->outputs + out], 1, (size_t)points);
  }
  return 0;
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
  return atomic_fetch_add(&taken, 1), __real_mmap(at, size, protection, flags, file, from);
}

typedef struct {
  DLTensor inputs[HT_MODEL_ENDS], outputs[HT_MODEL_ENDS];
  int64_t shapes[2 * HT_MODEL_ENDS][HT_MODEL_AXES];
  void* blocks[2 * HT_MODEL_ENDS];
  int32_t in, out;
} request;

static int64_t bytes_of(const DLTensor* t) {
  int64_t bytes = t->dtype.bits / 8;
  for (int a = 0; a < t->ndim; ++a)
    if (t->shape[a] < 0 || t->shape[a] > LARGEST || (bytes *= t->shape[a]) > LARGEST) return -1;
  return bytes;
}

/* An array of exactly these bytes: whole numbers are 0 or 1, others small. */
static void* block(const DLTensor* t, int64_t bytes) {
  char* found = __real_malloc((size_t)bytes + (bytes == 0));
  for (int64_t i = 0; i < bytes; ++i) found[i] = 0;
  if (t->dtype.code == kDLFloat && t->dtype.bits == 32)
    for (int64_t i = 0; i < bytes / 4; ++i) ((float*)(void*)found)[i] = (float)(draw() % 1000) / 500 - 1;
  else
    for (int64_t i = 0; i < bytes; i += t->dtype.bits / 8) found[i] = (char)(draw() & 1);
  return found;
}

static void let_go(request* r) {
  for (int32_t i = 0; i < r->in + r->out; ++i) free(r->blocks[i]);
  r->in = r->out = 0;
}

/* Inputs of these dimensions and room for what they make; -1 where that is refused or too large to try. */
static int prepare(ht_model* m, const int64_t* dims, request* r, ht_error* error) {
  int64_t told[HT_MODEL_ENDS * HT_MODEL_AXES], memory;
  const int64_t* next = told;
  r->in = r->out = 0;
  for (int32_t i = 0; i < m->input_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->inputs[i].tensor];
    r->inputs[i] = (DLTensor){NULL, {kDLCPU, 0}, t->rank, {t->code, t->bits, 1}, r->shapes[i], NULL, 0};
    for (int32_t a = 0; a < t->rank; ++a) {
      const ht_size_line* line = t->weight >= 0 ? NULL : &m->sizes[t->shape[a]];
      r->shapes[i][a] = line == NULL ? t->shape[a] : line->op == SIZE_DIM ? dims[line->a] : line->op == SIZE_NUMBER ? line->number : 1;
    }
    int64_t bytes = bytes_of(&r->inputs[i]);
    if (bytes < 0) return ht_refuse(error, "ValueError", "too large to try");
    r->blocks[r->in++] = r->inputs[i].data = block(&r->inputs[i], bytes);
  }
  if (ht_model_memory(m, dims, &memory, error) != 0 || ht_model_shapes(m, r->inputs, told, error) != 0) return -1;
  if (memory > 16 * LARGEST) return ht_refuse(error, "ValueError", "too large to try");
  for (int32_t i = 0; i < m->output_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->outputs[i].tensor];
    int64_t* shape = r->shapes[HT_MODEL_ENDS + i];
    for (int32_t a = 0; a < t->rank; ++a) shape[a] = *next++;
    r->outputs[i] = (DLTensor){NULL, {kDLCPU, 0}, t->rank, {t->code, t->bits, 1}, shape, NULL, 0};
    int64_t bytes = bytes_of(&r->outputs[i]);
    if (bytes < 0) return ht_refuse(error, "ValueError", "too large to try");
    r->blocks[r->in + r->out] = r->outputs[i].data = block(&r->outputs[i], bytes);
    ++r->out;
  }
  return 0;
}

static void draw_dims(const ht_model* m, int64_t* dims) {
  for (int32_t i = 0; i < m->dim_count; ++i) dims[i] = (int64_t)(draw() % 24);
}

static uint64_t checksum(const int64_t* words, int64_t count) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (int64_t i = HT_MODEL_HEAD; i < count; ++i) sum = (sum ^ (uint64_t)words[i]) * 0x100000001b3u;
  return sum;
}

static int schedules(int tries, const model_files* files) {
  const int64_t count = files->count;
  int refused = 0, ran = 0, found = 0;
  stub = 1;
  for (int i = 0; i < tries; ++i) {
    int64_t cut = draw() % 16 == 0 ? (int64_t)(draw() % (uint64_t)count) : count, odd[] = {-1, 0, 1, 2, 3, 8, 1 << 20, INT64_MAX, INT64_MIN, 1LL << 40};
    int64_t* words = __real_malloc((size_t)(cut + (cut == 0)) * 8); /* exact: reading past the end is seen */
    memcpy(words, files->words, (size_t)cut * 8);
    for (uint64_t changes = 1 + draw() % 3; cut > HT_MODEL_HEAD && changes > 0; --changes) {
      int64_t at = HT_MODEL_HEAD + (int64_t)(draw() % (uint64_t)(cut - HT_MODEL_HEAD));
      words[at] = draw() % 2 ? (int64_t)((uint64_t)words[at] + draw() % 5 - 2) : draw() % 4 ? (int64_t)(draw() % 80) : odd[draw() % (sizeof odd / sizeof *odd)];
    }
    const int damaged = draw() % 8 == 0 && cut == count && memcmp(words, files->words, (size_t)count * 8) != 0;
    if (cut > 3) words[2] = cut;
    if (cut > 3 && !damaged) words[3] = (int64_t)checksum(words, cut);
    ht_error error;
    ht_model* m = ht_model_open(words, cut, files->weights, 1, 0, 1 + (int)(draw() % 2), &error);
    if (m != NULL && damaged) return printf("a wrong checksum was accepted\n"), 1;
    for (int k = 0; m != NULL && k < 3; ++k) {
      static request r;
      int64_t* dims = __real_malloc(((size_t)m->dim_count + 1) * 8);
      draw_dims(m, dims);
      found = prepare(m, dims, &r, &error) == 0 && ht_model_run(m, r.inputs, r.outputs, NULL, &error) == 0;
      ran += found;
      let_go(&r);
      free(dims);
    }
    refused += m == NULL;
    if (m != NULL) ht_model_close(m);
    free(words);
  }
  printf("refused=%d ran=%d\n", refused, ran);
  return refused == 0 || ran == 0;
}

/* One of the tensors becomes odd; whether the call must be refused for it. */
static int spoil(request* r, DLTensor* t, int64_t* strides) {
  int axis = t->ndim == 0 ? 0 : (int)(draw() % (uint64_t)t->ndim);
  (void)r;
  switch (draw() % 10) {
    case 0: t->ndim += 1 - 2 * (int)(draw() % 2); return 1;
    case 1: t->dtype.bits = t->dtype.bits == 32 ? 64 : 32; return 1;
    case 2: t->dtype.lanes = 2; return 1;
    case 3: t->device.device_type = kDLCUDA; return 1;
    case 4: if (t->ndim > 0) t->shape = NULL; return t->ndim > 0;
    case 5: if (bytes_of(t) > 0) t->data = NULL; return t->data == NULL;
    case 6: if (t->ndim > 0) t->shape[axis] = -1 - (int64_t)(draw() % 3); return t->ndim > 0;
    case 7: t->byte_offset = 1; return bytes_of(t) > 0 && t->dtype.bits > 8;
    case 8:
      for (int a = 0; a < t->ndim; ++a) strides[a] = 2;
      t->strides = strides;
      return t->ndim > 0 && t->shape[t->ndim - 1] > 1;
    default: t->dtype.code = t->dtype.code == kDLInt ? kDLUInt : kDLInt; return 1;
  }
}

static int flips(const model_files* files) {
  const int64_t bytes = 8 * files->count;
  ht_error error;
  ht_model* sound = open_files(files, 1, &error);
  if (sound == NULL) return printf("%s\n", error.text), 1;
  ht_model_close(sound);
  for (int64_t at = 0; at < bytes + files->count; ++at) { /* every byte, then every number of words */
    const int64_t count = at < bytes ? files->count : at - bytes;
    int64_t* words = __real_malloc((size_t)(8 * count + (count == 0)));
    memcpy(words, files->words, (size_t)(8 * count));
    if (at < bytes) ((unsigned char*)words)[at] ^= (unsigned char)(1 + draw() % 255);
    ht_model* m = ht_model_open(words, count, files->weights, 1, 0, 1, &error);
    if (m != NULL || strstr(error.text, "schedule is damaged") == NULL) return printf("byte %lld: %s\n", (long long)at, m != NULL ? "accepted" : error.text), 1;
    free(words);
  }
  printf("refused=%lld\n", (long long)(bytes + files->count));
  return 0;
}

static int feeds(int tries, const model_files* files) {
  ht_error error;
  ht_model* m = open_files(files, 2, &error);
  int refused = 0, ran = 0;
  if (m == NULL) return printf("%s\n", error.text), 1;
  for (int i = 0; i < tries; ++i) {
    static request r;
    int64_t dims[8], strides[HT_MODEL_AXES + 1];
    draw_dims(m, dims);
    if (prepare(m, dims, &r, &error) != 0) return printf("%s\n", error.text), 1;
    int which = (int)(draw() % (uint64_t)(r.in + r.out)), odd = draw() % 2 == 0, wrong = 0;
    if (odd) wrong = spoil(&r, which < r.in ? &r.inputs[which] : &r.outputs[which - r.in], strides);
    int rc = ht_model_run(m, r.inputs, r.outputs, NULL, &error);
    if ((wrong && rc == 0) || (!odd && rc != 0)) return printf("try %d: wrong=%d rc=%d %s\n", i, wrong, rc, rc ? error.text : ""), 1;
    refused += rc != 0;
    ran += rc == 0;
    let_go(&r);
  }
  ht_model_close(m);
  printf("refused=%d ran=%d\n", refused, ran);
  return refused == 0 || ran == 0;
}

static int steady(const model_files* files) {
  ht_error error;
  ht_model* m = open_files(files, 2, &error);
  static request r, s;
  const int64_t dims[2][8] = {{3, 40, 3, 3, 3, 3, 3, 3}, {2, 17, 2, 2, 2, 2, 2, 2}};
  if (m == NULL || prepare(m, dims[0], &r, &error) != 0 || prepare(m, dims[1], &s, &error) != 0) return printf("%s\n", error.text), 1;
  for (int round = 0; round < 2; ++round) {
    int before = atomic_load(&taken);
    if (ht_model_run(m, r.inputs, r.outputs, NULL, &error) != 0 || ht_model_run(m, s.inputs, s.outputs, NULL, &error) != 0) return printf("%s\n", error.text), 1;
    if (round == 1 && atomic_load(&taken) != before) return printf("took memory %d times\n", atomic_load(&taken) - before), 1;
  }
  int64_t need, held[HT_MODEL_FACTS];
  ht_model_memory(m, dims[0], &need, &error);
  ht_model_held(m, held);
  printf("calls=%d plans=%d contexts=%d arena_is_need=%d", (int)held[0], (int)held[1], (int)held[2], held[3] == need);
  ht_model_trim(m);
  ht_model_held(m, held);
  printf(" after_trim=%d\n", (int)held[3]);
  let_go(&r);
  let_go(&s);
  ht_model_close(m);
  return 0;
}

typedef struct {
  ht_model* model;
  request r;
  char* want;
  int64_t bytes;
  int rounds, wrong;
} caller;

static void* call_often(void* arg) {
  caller* c = arg;
  ht_error error;
  for (int i = 0; i < c->rounds; ++i) {
    memset(c->r.outputs[0].data, 0, (size_t)c->bytes);
    c->wrong += ht_model_run(c->model, c->r.inputs, c->r.outputs, NULL, &error) != 0 || memcmp(c->r.outputs[0].data, c->want, (size_t)c->bytes) != 0;
  }
  return NULL;
}

static int callers(int rounds, const model_files* files) {
  enum { CALLERS = 4 };
  static caller all[CALLERS];
  pthread_t threads[CALLERS];
  ht_error error;
  int wrong = 0;
  ht_model* m = open_files(files, 2, &error);
  if (m == NULL) return printf("%s\n", error.text), 1;
  for (int i = 0; i < CALLERS; ++i) {
    const int64_t dims[8] = {1 + i, 5 + 9 * i, 1, 1, 1, 1, 1, 1};
    all[i].model = m;
    all[i].rounds = rounds;
    if (prepare(m, dims, &all[i].r, &error) != 0 || ht_model_run(m, all[i].r.inputs, all[i].r.outputs, NULL, &error) != 0) return printf("%s\n", error.text), 1;
    all[i].bytes = bytes_of(&all[i].r.outputs[0]);
    all[i].want = __real_malloc((size_t)all[i].bytes + 1);
    memcpy(all[i].want, all[i].r.outputs[0].data, (size_t)all[i].bytes);
  }
  for (int i = 0; i < CALLERS; ++i) pthread_create(&threads[i], NULL, call_often, &all[i]);
  for (int i = 0; i < CALLERS; ++i) {
    pthread_join(threads[i], NULL);
    wrong += all[i].wrong;
    let_go(&all[i].r);
    free(all[i].want);
  }
  ht_model_close(m);
  printf("wrong=%d\n", wrong);
  return wrong != 0;
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  int tries = atoi(argv[2]);
  const model_files files = files_of(argv[4], argv[5]);
  state = strtoull(argv[3], NULL, 10);
  if (strcmp(argv[1], "schedules") == 0) return schedules(tries, &files);
  if (strcmp(argv[1], "flips") == 0) return flips(&files);
  if (strcmp(argv[1], "feeds") == 0) return feeds(tries, &files);
  return strcmp(argv[1], "steady") == 0 ? steady(&files) : callers(tries, &files);
}
