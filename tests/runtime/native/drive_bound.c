/* Binding and calling through the C library and through the table behind it, with all that neither takes:
 * drive_bound PACK OP CPU_PACK. Prints "right"; leaks and stray reads are a sanitizer's. */
#define _GNU_SOURCE
#include "doors.h"
#include <tvm/ffi/c_api.h>

/* Doors of kinds of op that no pack here has. */
static const ht_door* whole;
static const char* told_kind;
static int pack_refuses;
static void my_describe(int op, ht_door_op* out) {
  whole->describe(op, out);
  out->kind = told_kind;
}
static int64_t no_floats(int op) { return op * 0; }
static int64_t some_floats(int op) { return op * 0 + 16; }
static int my_pack(int op, const DLTensor* w, float* packed, const char** kind, char* text, size_t size) {
  memset(packed, 0, 16 * sizeof *packed);
  *kind = "ValueError";
  snprintf(text, size, "of %d axes", (int)w->ndim + op);
  return pack_refuses ? -1 : 0;
}
/* Arguments that no function takes, on a device and on a CPU. */
static void missing(const ht_linear* linear, const DLTensor* x, const DLTensor* y) {
  REFUSED(ht_call(NULL, x, y, NULL, &error), HT_BAD_VALUE, "linear, x or out is NULL");
  REFUSED(ht_call(linear, NULL, y, NULL, &error), HT_BAD_VALUE, "linear, x or out is NULL");
  REFUSED(ht_call(linear, x, NULL, NULL, &error), HT_BAD_VALUE, "linear, x or out is NULL");
  REFUSED(ht_call_threads(NULL, x, y, NULL, 1, &error), HT_BAD_VALUE, "linear, x or out is NULL");
  REFUSED(ht_call_threads(linear, NULL, y, NULL, 1, &error), HT_BAD_VALUE, "linear, x or out is NULL");
  REFUSED(ht_call_threads(linear, x, NULL, NULL, 1, &error), HT_BAD_VALUE, "linear, x or out is NULL");
  REFUSED(ht_call_grouped(NULL, x, x, y, NULL, &error), HT_BAD_VALUE, "linear, x, offsets or out is NULL");
  REFUSED(ht_call_grouped(linear, NULL, x, y, NULL, &error), HT_BAD_VALUE, "linear, x, offsets or out is NULL");
  REFUSED(ht_call_grouped(linear, x, NULL, y, NULL, &error), HT_BAD_VALUE, "linear, x, offsets or out is NULL");
  REFUSED(ht_call_grouped(linear, x, x, NULL, NULL, &error), HT_BAD_VALUE, "linear, x, offsets or out is NULL");
  REFUSED(ht_call_grouped(linear, x, x, y, NULL, &error), HT_BAD_VALUE, "takes no offsets: use ht_call");
  REFUSED(ht_prepare(NULL, NULL, &error), HT_BAD_VALUE, "linear is NULL");
  ht_linear_free(NULL);
}

static void binding(const char* path, const char* name) {
  ht_pack *pack, *again;
  ht_op* op;
  ht_linear *linear = NULL, *other = NULL, *none = NULL;
  ht_error said;
  long long n, k;
  CHECK(sscanf(name, "dense_n%lld_k%lld", &n, &k) == 2);
  CHECK(ht_pack_open_on(path, 0, &pack, &said) == HT_OK && ht_op_find(pack, name, &op, &said) == HT_OK);
  int64_t w_shape[2] = {n, k}, x_shape[2] = {1, k}, y_shape[2] = {1, n};
  const DLDataType dtype = {kDLFloat, strstr(name, "fp16") == NULL ? 32 : 16, 1};
  DLTensor w = {place(4 * n * k), {kDLCUDA, 0}, 2, dtype, w_shape, NULL, 0}, x = w, y = w, far = w, host = w;
  x.shape = x_shape, x.data = place(4 * k), y.shape = y_shape, y.data = place(4 * n);
  far.device.device_id = 1, host.device = (DLDevice){kDLCPU, 5};
  REFUSED(ht_bind(NULL, &w, NULL, &none, &error), HT_BAD_VALUE, "op or out is NULL");
  REFUSED(ht_bind(op, &w, NULL, NULL, &error), HT_BAD_VALUE, "op or out is NULL");
  REFUSED(ht_bind(op, NULL, NULL, &none, &error), HT_BAD_VALUE, "weight is NULL");
  REFUSED(ht_bind(op, &far, NULL, &none, &error), HT_BAD_VALUE, "weight lives on cuda:1, the pack is open on cuda:0");
  REFUSED(ht_bind(op, &host, NULL, &none, &error), HT_BAD_VALUE, "weight lives on the CPU");
  for (int nth = 1; nth <= 2; ++nth) {
    starved = nth;
    REFUSED(ht_bind(op, &w, NULL, &none, &error), HT_NO_MEMORY, "no memory to bind");
    CHECK(starved == 0 && none == NULL);
  }
  REFUSED(ht_bind(op, &w, NULL, &linear, &error), HT_OK, "");
  CHECK(ht_bind(op, &w, NULL, &other, NULL) == HT_OK);
  missing(linear, &x, &y);
  REFUSED(ht_prepare(linear, NULL, &error), HT_OK, "");
  REFUSED(ht_call_threads(linear, &x, &y, NULL, 1, &error), HT_BAD_VALUE, "a device has no thread counts");
  ht_counts_t before, after;
  CHECK(ht_stats(op, &before) == HT_OK);
  REFUSED(ht_call(linear, &x, &y, NULL, &error), HT_OK, "");
  CHECK(ht_stats(op, &after) == HT_OK && after.calls == before.calls + 1 && after.fallbacks == before.fallbacks);
  CHECK(ht_pack_open_on(path, 0, &again, &said) == HT_OK); /* a pack of its own, whose closing is not the first's */
  ht_pack_close(again);
  ht_linear_free(other);
  REFUSED(ht_call(linear, &x, &y, NULL, &error), HT_OK, "");
  ht_pack_close(pack);
  REFUSED(ht_bind(op, &w, NULL, &none, &error), HT_CLOSED, "the pack was closed");
  REFUSED(ht_call(linear, &x, &y, NULL, &error), HT_CLOSED, "the pack was closed");
  REFUSED(ht_call_threads(linear, &x, &y, NULL, 1, &error), HT_BAD_VALUE, "a device has no thread counts");
  ht_linear_free(linear);
}

#define SAID(call, kind_, words)                                                                                              \
  do {                                                                                                                        \
    kind = "", text[0] = 0;                                                                                                   \
    if ((call) != -1 || strcmp(kind, kind_) != 0 || strncmp(text, prefix, strlen(prefix)) != 0 || strstr(text, words) == NULL) { \
      fprintf(stderr, "line %d: %s: %s %s\n", __LINE__, #call, kind, text);                                                   \
      exit(1);                                                                                                                \
    }                                                                                                                         \
  } while (0)
#define BOUND_FIRST (int64_t)HT_MAX_THREADS /* the setting of a device's first plan */

/* Tensors that are no record of a bound weight, and records that this op did not fill. */
static void wrong_records(const ht_door* door, char* bound, int64_t bytes, const DLTensor* x, const DLTensor* y, const char* prefix) {
  char text[400];
  const char* kind;
  int64_t shape[2] = {bytes, 1}, less[1] = {bytes - 128};
  const DLTensor right = {bound, {kDLCPU, 0}, 1, {kDLUInt, 8, 1}, shape, NULL, 0};
  DLTensor wrong[] = {right, right, right, right, right, right};
  wrong[0].device.device_type = kDLCUDA, wrong[1].dtype.bits = 16, wrong[2].ndim = 2, wrong[3].shape = less, wrong[4].data = NULL;
  wrong[5].byte_offset = 64;
  CHECK(door->call(0, x, &right, y, NULL, BOUND_FIRST, &kind, text, sizeof text) == 0);
  for (int i = 0; i < 6; ++i)
    SAID(door->call(0, x, &wrong[i], y, NULL, BOUND_FIRST, &kind, text, sizeof text), "ValueError", "weight was not bound by this pack");
  struct { /* how ht_cuda_bound begins */
    uint64_t mark;
    const void* op;
  } *record = (void*)bound, kept = *record;
  for (int i = 0; i < 2; ++i) {
    if (i == 0) record->mark ^= 1;
    else record->op = text;
    SAID(door->queue(0, x, bound, y, BOUND_FIRST, NULL, &kind, text, sizeof text), "ValueError", "weight was not bound by this pack");
    SAID(door->prepare(0, bound, NULL, &kind, text, sizeof text), "ValueError", "was not bound by this pack");
    *record = kept;
  }
}

/* What neither x nor out may be. */
static void wrong_rows(const ht_door* door, const char* bound, const DLTensor* x, const DLTensor* y, const char* prefix) {
  char text[400];
  const char* kind;
  int64_t backwards[2] = {-x->shape[1], 1}, close[2] = {y->shape[1] - 1, 1}, two_x[2] = {2, x->shape[1]}, two_y[2] = {2, y->shape[1]};
  DLTensor wrong[] = {*x, *x, *x, *x, *x, *x, *x}, rows = *x, out = *y;
  static const char* const words[] = {"has rank 0", "has rank 33", "has rank 2; expected 1 to", "has dtype code 0", "has dtype code", "has dtype code", "lives on cuda:1"};
  wrong[0].ndim = 0, wrong[1].ndim = 33, wrong[2].shape = NULL, wrong[3].dtype.code = kDLInt, wrong[4].dtype.bits = 64;
  wrong[5].dtype.lanes = 2, wrong[6].device.device_id = 1;
  for (int i = 0; i < 7; ++i) {
    const char* named = i > 2 && i < 6 ? "TypeError" : "ValueError";
    SAID(door->queue(0, &wrong[i], bound, y, BOUND_FIRST, NULL, &kind, text, sizeof text), named, words[i]);
    CHECK(strstr(text, ": x ") != NULL);
    SAID(door->queue(0, x, bound, &wrong[i], BOUND_FIRST, NULL, &kind, text, sizeof text), named, words[i]);
    CHECK(strstr(text, ": out ") != NULL);
  }
  rows.shape = two_x, out.shape = two_y, rows.strides = backwards;
  SAID(door->queue(0, &rows, bound, &out, BOUND_FIRST, NULL, &kind, text, sizeof text), "ValueError", "x has the row stride -");
  rows.strides = NULL, out.strides = close;
  SAID(door->queue(0, &rows, bound, &out, BOUND_FIRST, NULL, &kind, text, sizeof text), "ValueError", "rows of out overlap");
  rows.shape = x->shape, rows.strides = backwards, out.shape = y->shape; /* one row has no stride */
  CHECK(door->queue(0, &rows, bound, &out, BOUND_FIRST, NULL, &kind, text, sizeof text) == 0);
}

/* A server without tvm-ffi has none of its functions: a door for it answers, and refuses what it would need them for. */
static void without_tvm_ffi(void* library, const char* name, DLTensor* x, char* bound, int64_t bytes, DLTensor* y) {
  char symbol[200];
  int (*door)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  DLTensor record = {bound, {kDLCPU, 0}, 1, {kDLUInt, 8, 1}, &bytes, NULL, 0};
  TVMFFIAny result, args[4] = {{.type_index = kTVMFFIDLTensorPtr}, {.type_index = kTVMFFIDLTensorPtr}, {.type_index = kTVMFFIDLTensorPtr}, {.type_index = kTVMFFIInt}};
  args[0].v_ptr = x, args[1].v_ptr = &record, args[2].v_ptr = y, args[3].v_int64 = BOUND_FIRST;
  snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", name);
  *(void**)&door = __real_dlsym(library, symbol);
  CHECK(door != NULL && door(NULL, args, 4, &result) == 0 && result.type_index == kTVMFFINone);
  args[2] = (TVMFFIAny){.type_index = kTVMFFINone};
  CHECK(door(NULL, args, 4, &result) == -1);
}

/* The table behind the C library, with what the library itself never passes. */
static void behind(const char* path, const char* name, int on_device) {
  ht_pack* pack;
  ht_error opened;
  ht_door_op facts;
  char text[400] = "", prefix[100];
  const char* kind;
  long long n, k;
  CHECK((on_device ? ht_pack_open_on(path, 0, &pack, &opened) : ht_pack_open(path, 1, &pack, &opened)) == HT_OK);
  const ht_door* door = pack->door;
  door->describe(0, &facts);
  CHECK(sscanf(facts.name, "dense_n%lld_k%lld", &n, &k) == 2 && facts.n == n && facts.k == k && strcmp(facts.kind, "dense") == 0);
  CHECK((name == NULL || strcmp(name, facts.name) == 0) && (facts.bound_bytes > 0) == on_device && (door->packed_floats(0) == 0) == on_device);
  snprintf(prefix, sizeof prefix, "%s: ", facts.name);
  int64_t once[3] = {-1, -1, -1}, twice[3] = {7, 7, 7}; /* what was there does not count */
  door->counts(0, once), door->counts(0, twice);
  CHECK(memcmp(once, twice, sizeof once) == 0 && once[0] >= 0 && once[1] >= 0 && once[2] >= 0);
  int64_t w_shape[2] = {n, k}, x_shape[2] = {1, k}, y_shape[2] = {1, n}, b_shape[1] = {n};
  const int64_t setting = door->setting(0, 1);
  const DLDevice where = on_device ? (DLDevice){kDLCUDA, 0} : (DLDevice){kDLCPU, 0};
  DLTensor w = {NULL, where, 2, {kDLFloat, strstr(facts.name, "fp16") == NULL ? 32 : 16, 1}, w_shape, NULL, 0}, x = w, y = w, b = w;
  x.shape = x_shape, y.shape = y_shape, b.shape = b_shape, b.ndim = 1;
  if (!on_device) {
    static const int plans[] = {8, 2, 4}; /* threads of the plans of our CPU pack */
    for (int threads = 1; threads <= 20; ++threads) {
      int best = 1;
      for (int i = 0; i < 3; ++i) {
        const int away = abs(plans[i] - threads) - abs(plans[best] - threads);
        if (away < 0 || (away == 0 && plans[i] < plans[best])) best = i;
      }
      CHECK(door->setting(0, threads) == best + HT_MAX_THREADS * threads);
    }
    SAID(door->open(0, &kind, text, sizeof text), "ValueError", "holds no code for devices");
    x.dtype.bits = 64;
    SAID(door->call(0, &x, &w, &y, NULL, setting, &kind, text, sizeof text), "TypeError", "x has dtype");
    ht_pack_close(pack);
    return;
  }
  CHECK(door->open(0, &kind, text, sizeof text) == 0 && setting == HT_MAX_THREADS);
  SAID(door->open(99, &kind, text, sizeof text), "ValueError", "there is no device cuda:99");
  w.data = place(4 * n * k), x.data = place(4 * k), y.data = place(4 * n), b.data = place(4 * n);
  char* bound = __real_aligned_alloc(128, (size_t)(facts.bound_bytes + 255) / 128 * 128);
  memset(bound, 0, (size_t)facts.bound_bytes);
#define BIND(w_, b_) door->bind(0, w_, b_, bound, &kind, text, sizeof text)
#define QUEUE(x_, y_, setting_) door->queue(0, x_, bound, y_, setting_, NULL, &kind, text, sizeof text)
  SAID(QUEUE(&x, &y, setting), "ValueError", "weight was not bound by this pack");
  SAID(door->prepare(0, bound, NULL, &kind, text, sizeof text), "ValueError", "was not bound by this pack");
  SAID(door->bind(0, &w, NULL, bound + 8, &kind, text, sizeof text), "ValueError", "bound must be aligned to 128 bytes");
  DLTensor t = b;
  t.shape = NULL;
  SAID(BIND(NULL, NULL), "TypeError", "weight is missing");
  SAID(BIND(&w, &t), "ValueError", "bias has rank 1; expected");
  t = w, t.ndim = 0;
  SAID(BIND(&t, NULL), "ValueError", "weight has rank 0; expected");
  t = w, t.data = NULL;
  SAID(BIND(&t, NULL), "ValueError", "weight must be contiguous and have data");
  t = b, t.data = NULL;
  SAID(BIND(&w, &t), "ValueError", "bias has rank 1 and extent");
  t = b, t.device.device_id = 1;
  SAID(BIND(&w, &t), "ValueError", "bias lives on cuda:1, the weight on cuda:0");
  t = w, t.dtype.lanes = 2;
  SAID(BIND(&t, NULL), "TypeError", "weight has dtype");
  t = w, t.dtype.code = kDLInt;
  SAID(BIND(&t, NULL), "TypeError", "weight has dtype");
  t = w, t.ndim = 33;
  SAID(BIND(&t, NULL), "ValueError", "weight has rank 33; expected");
  t = w, t.ndim = 1; /* one number of a shape, on the heap so that a sanitizer sees a second */
  t.shape = malloc(sizeof *t.shape), t.shape[0] = n;
  SAID(BIND(&t, NULL), "ValueError", "weight has rank 1 and shape");
  t.dtype = b.dtype, t.shape[0] = n + 1;
  SAID(BIND(&w, &t), "ValueError", "bias has rank 1 and extent");
  free(t.shape);
  SAID(QUEUE(&x, &y, setting), "ValueError", "weight was not bound by this pack"); /* a failed binding leaves none */
  CHECK(BIND(&w, &b) == 0 && door->prepare(0, bound, NULL, &kind, text, sizeof text) == 0 && QUEUE(&x, &y, setting) == 0);
  t = w, t.shape = y_shape; /* what fails later leaves none of an earlier binding either */
  SAID(BIND(&t, NULL), "ValueError", "weight has rank 2 and shape");
  SAID(QUEUE(&x, &y, setting), "ValueError", "weight was not bound by this pack");
  t = w, t.device.device_id = 77;
  SAID(BIND(&t, NULL), "ValueError", "there is no device cuda:77");
  CHECK(BIND(&w, &b) == 0 && QUEUE(&x, &y, setting) == 0);
  wrong_records(door, bound, facts.bound_bytes, &x, &y, prefix);
  wrong_rows(door, bound, &x, &y, prefix);
  without_tvm_ffi(pack->library, facts.name, &x, bound, facts.bound_bytes, &y);
  SAID(QUEUE(NULL, &y, setting), "TypeError", "x is missing");
  SAID(QUEUE(&x, NULL, setting), "TypeError", "out is missing");
  for (int64_t plan = 0; plan < HT_MAX_THREADS; ++plan)
    for (int64_t threads = -1; threads <= HT_MAX_THREADS + 1; threads += threads < 1 ? 1 : HT_MAX_THREADS / 2)
      if (plan > 0 || threads < 1 || threads > HT_MAX_THREADS) SAID(QUEUE(&x, &y, plan + threads * HT_MAX_THREADS), "ValueError", "names no plan of this pack");
  t = x, t.data = NULL;
  SAID(QUEUE(&t, &y, setting), "ValueError", "x has no data");
  t = y, t.data = NULL;
  SAID(QUEUE(&x, &t, setting), "ValueError", "out has no data");
  SAID(door->call(0, &x, NULL, &y, NULL, setting, &kind, text, sizeof text), "ValueError", "weight was not bound by this pack");
  SAID(door->call(0, &x, &w, &y, &b, setting, &kind, text, sizeof text), "TypeError", "expected x, a bound weight, and out");
  SAID(door->queue_groups(0, &x, bound, &y, &b, setting, NULL, &kind, text, sizeof text), "TypeError", "expected x, a bound weight, and out");
  memset(bound, 0x55, (size_t)facts.bound_bytes);
  SAID(QUEUE(&x, &y, setting), "ValueError", "weight was not bound by this pack");
  free(bound);
  ht_pack_close(pack);
}

/* The same functions for a CPU's pack, and for ops of kinds that its door makes up. */
static void hosting(const char* path) {
  ht_pack *pack, *kept;
  ht_linear *linear, *none = NULL;
  ht_error said;
  long long n, k;
  CHECK(ht_pack_open(path, 2, &kept, &said) == HT_OK);
  const char* name = ht_op_name(kept, 0);
  CHECK(sscanf(name, "dense_n%lld_k%lld", &n, &k) == 2);
  float *memory = __real_calloc((size_t)(n * k + k + n + n), sizeof *memory), *b = memory + n * k + k + n;
  int64_t w_shape[2] = {n, k}, x_shape[2] = {1, k}, y_shape[2] = {1, n}, b_shape[1] = {n};
  DLTensor w = {memory, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, w_shape, NULL, 0}, x = w, y = w, bias = w, half = w;
  x.shape = x_shape, x.data = memory + n * k, y.shape = y_shape, y.data = memory + n * k + k;
  bias.shape = b_shape, bias.ndim = 1, bias.data = b, half.dtype.bits = 16;
  for (int64_t i = 0; i < n; ++i) b[i] = (float)(i + 1);
  whole = kept->door;
  mine = *whole, mine.describe = my_describe, told_kind = "dense", other_door = my_door;
  static const struct {
    const char* kind;
    int32_t version;
    int floats, status;
    const char* words;
  } kinds[] = {{"dense", 5, 0, HT_OK, ""},  {NULL, 1, 0, HT_OK, ""}, {"grouped", 5, 0, HT_OK, ""},    {"row_sum", 5, 0, HT_BAD_VALUE, "binds no weight; call it with ht_run"},
               {"conv", 5, 1, HT_OK, ""}, {"conv", 5, 1, HT_BAD_VALUE, "of 2 axes"}, {"conv", 4, 1, HT_BAD_VALUE, "binds no weight"}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    ht_op* op;
    told_kind = kinds[i].kind, mine.version = kinds[i].version, mine.packed_floats = kinds[i].floats ? some_floats : no_floats, mine.pack = my_pack;
    pack_refuses = kinds[i].status != HT_OK;
    CHECK(ht_pack_open(path, 2, &pack, &said) == HT_OK && ht_op_find(pack, name, &op, &said) == HT_OK);
    REFUSED(ht_bind(op, &w, &bias, &linear, &error), kinds[i].status, kinds[i].words);
    if (kinds[i].status == HT_OK) {
      CHECK(ht_prepare(linear, (void*)8, &said) == HT_OK);
      if (kinds[i].floats == 0) {
        REFUSED(ht_call(linear, &x, &y, (void*)8, &error), HT_BAD_VALUE, "has no streams");
        missing(linear, &x, &y);
        for (int threads = -1; threads <= 1 << 20; threads += threads < 2 ? 1 : 1 << 19) {
          const int served = threads == 1 || threads == 2;
          REFUSED(ht_call_threads(linear, &x, &y, NULL, threads, &error), served ? HT_OK : HT_BAD_VALUE, served ? "" : "threads=");
        }
        for (int64_t j = 0; j < n; ++j) CHECK(((float*)y.data)[j] == b[j]);
      }
      REFUSED(ht_bind(op, NULL, &bias, &none, &error), HT_BAD_VALUE, "weight is NULL");
      REFUSED(ht_bind(op, &w, &half, &none, &error), HT_BAD_TYPE, "bias is not float32");
      if (kinds[i].floats == 0) REFUSED(ht_bind(op, &half, &bias, &none, &error), HT_BAD_TYPE, "weight is not float32");
      b_shape[0] = n + 1;
      REFUSED(ht_bind(op, &w, &bias, &none, &error), HT_BAD_VALUE, "bias has");
      b_shape[0] = n;
      starved = 1;
      REFUSED(ht_bind(op, &w, &bias, &none, &error), HT_NO_MEMORY, "no memory to bind");
      if (kinds[i].floats == 0) CHECK(ht_bind(op, &w, NULL, &none, &said) == HT_OK);
      ht_linear_free(none);
      ht_pack_close(pack);
      if (kinds[i].floats == 0) REFUSED(ht_call(linear, &x, &y, NULL, &error), HT_CLOSED, "the pack was closed");
      ht_linear_free(linear);
    } else
      ht_pack_close(pack);
  }
  for (mine.version = 0; mine.version <= HT_DOOR_VERSION + 1; mine.version += HT_DOOR_VERSION + 1)
    REFUSED(ht_pack_open(path, 2, &pack, &error), HT_PACK_MISMATCH, "speaks door version");
  other_door = NULL;
  ht_pack_close(kept);
  free(memory);
}

int main(int argc, char** argv) {
  CHECK(argc == 4);
  find_driver();
  begin();
  binding(argv[1], argv[2]);
  behind(argv[1], argv[2], 1);
  hosting(argv[3]);
  behind(argv[3], NULL, 0);
  printf("right\n");
  return 0;
}
