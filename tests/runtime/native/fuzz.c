/* Random tensors against the validator, random tables against the look-up, random bytes against the manifest reader. Built with
 * ASan and UBSan. With COUNT 1 the outcome is printed, so that a seed can be kept for what it reaches.
 *   fuzz check COUNT SEED      whatever ht_check accepts must lie inside the memory it describes
 *   fuzz any COUNT SEED        the same of ht_check, for an op of three operands and two dynamic axes
 *   fuzz plan COUNT SEED       every m up to 2^31-1 gets regions that cover it exactly
 *   fuzz manifest COUNT SEED FILE...   damaged copies of each file; the reader must come back
 *   fuzz read 1 0 FILE...      what the reader says of each file, a line each */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../haotuner/runtime/clib/manifest.h"
#include "kinds/dense.h"

static uint64_t state;
static uint64_t draw(void) { /* splitmix64 (Steele et al. 2014) */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static const int64_t ODD[] = {-1, 0, 1, 2, 3, 7, 8, 12, 16, 1LL << 30, (1LL << 31) - 1, 1LL << 31, 1LL << 40, INT64_MAX, INT64_MIN,
                              -8, -12, 20, 64};
#define COUNT(a) (sizeof(a) / sizeof *(a))
#define FLOATS 4096
static float memory[3][FLOATS];

static int64_t odd(void) { return ODD[draw() % COUNT(ODD)]; }

static void tensor(DLTensor* t, int64_t* shape, int64_t* strides, float* data, int64_t inner) {
  int rank = draw() % 16 == 0 ? (int)(draw() % 70) - 2 : 1 + (int)(draw() % 4);
  int held = rank < 1 ? 1 : rank > 69 ? 69 : rank;
  *t = (DLTensor){data + draw() % 64, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, strides, 0};
  int64_t run = inner;
  for (int i = held - 1; i >= 0; --i) {
    shape[i] = i == held - 1 ? inner : (int64_t)(draw() % 4);
    strides[i] = i == held - 1 ? 1 : run;
    if (i < held - 1) run = (int64_t)((uint64_t)run * (uint64_t)(shape[i] > 0 ? shape[i] : 1));
    if (draw() % 8 == 0) shape[i] = odd();
    if (draw() % 8 == 0) strides[i] = odd();
  }
  switch (draw() % 24) {
    case 0: t->data = NULL; break;
    case 1: t->shape = NULL; break;
    case 2: t->strides = NULL; break;
    case 3: t->device.device_type = (DLDeviceType)(draw() % 20); break;
    case 4: t->dtype.bits = (uint8_t)draw(); break;
    case 5: t->dtype.code = (uint8_t)(draw() % 20); break;
    case 6: t->dtype.lanes = (uint16_t)(draw() % 3); break;
    case 7: t->byte_offset = draw() % 64; break;
    case 10: t->byte_offset = (uint64_t)1 << 63; break;
    default: break;
  }
}

static int inside(const float* data, int64_t rows, int64_t stride, int64_t inner, const DLTensor* t) {
  __int128 low = 0, high = inner, span = (__int128)(rows - 1) * stride;
  if (span < 0) low = span;
  else high = span + inner;
  /* the box that the tensor itself describes, from its own shape and strides */
  __int128 first = 0, last = 0;
  for (int i = 0; i < t->ndim; ++i) {
    __int128 reach = t->strides == NULL ? 0 : (__int128)(t->shape[i] - 1) * t->strides[i];
    if (reach < 0) first += reach;
    else last += reach;
  }
  if (t->strides == NULL) last = (__int128)rows * inner - 1;
  (void)data;
  return low >= first && high <= last + 1;
}

static int check(long count) {
  static const ht_dense op = {.n = 12, .k = 8, .panels = 2, .pw = 8};
  long accepted = 0;
  for (long turn = 0; turn < count; ++turn) {
    int64_t shapes[4][70], strides[4][70];
    DLTensor x, y, b;
    tensor(&x, shapes[0], strides[0], memory[0], op.k);
    tensor(&y, shapes[1], strides[1], draw() % 8 ? memory[1] : memory[0], op.n);
    tensor(&b, shapes[2], strides[2], memory[2], op.n);
    if (draw() % 2) { /* the same leading axes, or next to nothing is accepted */
      y.ndim = x.ndim;
      if (x.shape != NULL && y.shape != NULL && x.ndim > 1 && x.ndim < 70) {
        memcpy(shapes[1], shapes[0], sizeof(int64_t) * (size_t)(x.ndim - 1));
        shapes[1][x.ndim - 1] = op.n;
        int64_t run = op.n;
        for (int i = x.ndim - 1; i >= 0; --i) {
          strides[1][i] = i == x.ndim - 1 ? 1 : run;
          if (i < x.ndim - 1) run = (int64_t)((uint64_t)run * (uint64_t)(shapes[1][i] > 0 ? shapes[1][i] : 1));
        }
      }
    }
    int64_t w_shape[3] = {op.panels, op.k, op.pw};
    static float w[2 * 8 * 8];
    int64_t w_strides[3] = {op.k * op.pw, op.pw, 1};
    const DLTensor* bias = draw() % 4 ? NULL : &b;
    if (count > 1 && draw() % 4 == 0) w_strides[draw() % 3] = odd(); /* not those of the packed weight */
    DLTensor weight = {w, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, w_shape, count > 1 && draw() % 4 ? w_strides : NULL, 0};
    ht_dense_call call;
    ht_error error = {NULL, ""};
    if (ht_dense_check("fuzz", &op, &x, &weight, &y, bias, &call, &error) != 0) {
      if (error.kind == NULL || error.text[0] == 0) return 1;
      if (count == 1) printf("%s\n", error.text);
      continue;
    }
    if (count == 1) printf("accepted, rank %d, %lld rows\n", (int)x.ndim, (long long)call.m);
    ++accepted;
    if (call.m < 0 || call.m > 2147483647) return 2;
    const int64_t packed[3] = {op.k * op.pw, op.pw, 1};
    if (weight.strides != NULL && memcmp(w_strides, packed, sizeof packed) != 0) return 5; /* would be read past its end */
    if (call.m == 0) continue;
    if (x.byte_offset >= 64 || y.byte_offset >= 64) return 6; /* beyond the address space */
    if (!inside(call.x, call.m, call.ldx, op.k, &x) || !inside(call.y, call.m, call.ldy, op.n, &y)) return 3;
    uintptr_t y0 = (uintptr_t)call.y, x0 = (uintptr_t)call.x;
    if (call.m == 1 && x0 < y0 + 4u * (unsigned)op.n && y0 < x0 + 4u * (unsigned)op.k) return 4; /* alias let through */
  }
  if (count == 1) return 0;
  printf("accepted=%ld of %ld\n", accepted, count);
  return accepted * 100 < count; /* a fuzzer that is always refused tests nothing */
}

/* x[b,m,4], s[m] and y[b,m]: what is accepted lies inside the memory that each tensor describes, and y apart from the others. */
static int any(long count) {
  static const ht_axis axes[] = {{"b", 0, 1, 9}, {"m", 0, 1, 9}, {"k", 4, 1, 1}};
  static const ht_operand operands[] = {{"x", HT_INPUT, kDLFloat, 32, 3, {0, 1, 2}, 0, 0},
                                        {"s", HT_CONSTANT, kDLFloat, 32, 1, {1}, 1, 0},
                                        {"y", HT_OUTPUT, kDLFloat, 32, 2, {0, 1}, 0, 0}};
  static const ht_op op = {.name = "fuzz", .axis_count = 3, .operand_count = 3, .axes = axes, .operands = operands};
  long accepted = 0;
  for (long turn = 0; turn < count; ++turn) {
    int64_t shapes[3][70], strides[3][70], b = (int64_t)(draw() % 4), m = (int64_t)(draw() % 5);
    DLTensor t[3];
    const DLTensor* given[3] = {&t[0], &t[1], &t[2]};
    tensor(&t[0], shapes[0], strides[0], memory[0], 4);
    tensor(&t[1], shapes[1], strides[1], memory[1], m);
    tensor(&t[2], shapes[2], strides[2], draw() % 8 ? memory[2] : memory[0], m);
    for (int i = 0; i < 3; ++i) { /* mostly what fits, or next to nothing is accepted */
      if (draw() % 8 == 0 || t[i].shape == NULL) continue;
      const int64_t wanted[3][3] = {{b, m, 4}, {m, 0, 0}, {b, m, 0}};
      t[i].ndim = operands[i].rank;
      int64_t run = 1;
      for (int a = t[i].ndim - 1; a >= 0; --a) {
        shapes[i][a] = wanted[i][a];
        strides[i][a] = draw() % 16 == 0 ? odd() : run;
        run *= wanted[i][a] > 0 ? wanted[i][a] : 1;
      }
    }
    if (draw() % 64 == 0) given[draw() % 3] = NULL;
    ht_call call;
    ht_error error = {NULL, ""};
    if (ht_check(&op, given, 3, &call, &error) != 0) {
      if (error.kind == NULL || error.text[0] == 0) return 1;
      continue;
    }
    ++accepted;
    for (int i = 0; i < 3; ++i) {
      __int128 low = 0, high = 0, first = 0, last = 0;
      int empty = 0;
      for (int a = 0; a < operands[i].rank; ++a) { /* what the kernel may touch */
        __int128 span = (__int128)(call.views[i].extents[a] - 1) * call.views[i].strides[a];
        if (call.views[i].extents[a] != call.extents[operands[i].axes[a]]) return 2;
        empty |= call.views[i].extents[a] == 0;
        *(span < 0 ? &low : &high) += span;
      }
      __int128 run = 1;
      for (int a = t[i].ndim - 1; a >= 0; --a) { /* what the tensor says of itself */
        __int128 span = (__int128)(t[i].shape[a] - 1) * (t[i].strides == NULL ? run : t[i].strides[a]);
        run *= t[i].shape[a];
        *(span < 0 ? &first : &last) += span;
      }
      if (!empty && (low < first || high > last)) return 3;
      if (!empty && i < 2 && !call.empty) {
        uintptr_t y0 = (uintptr_t)call.views[2].data, x0 = (uintptr_t)call.views[i].data;
        if (x0 == y0) return 4; /* alias let through */
      }
    }
  }
  printf("accepted=%ld of %ld\n", accepted, count);
  return accepted * 20 < count;
}

/* A table whose entries cover their m exactly, as the planner makes them: up to three kernels, each once. */
static int plan(long count) {
  for (long turn = 0; turn < count; ++turn) {
    ht_kernel kernels[8];
    static ht_entry entries[64];
    int held = 1 + (int)(draw() % 8), limit = 1 + (int)(draw() % 64);
    for (int i = 0; i < held; ++i) kernels[i] = (ht_kernel){.name = "k", .mr = i == 0 ? 1 : 1 + (int)(draw() % 16), .nr = 16, .pw = 16};
    for (int m = 1; m <= limit; ++m) {
      ht_entry entry = {{0, 0, 0}, {0, 0, 0}, (uint8_t)(draw() % 3)};
      int left = m, part = 0;
      for (int i = held - 1; i > 0 && part < 2; --i) {
        if (kernels[i].mr > left || draw() % 2) continue;
        entry.tiles[part] = (uint16_t)(1 + draw() % (uint64_t)(left / kernels[i].mr));
        entry.kernel[part] = (uint8_t)i;
        left -= entry.tiles[part++] * kernels[i].mr;
      }
      if (left > 0) entry.tiles[part] = (uint16_t)left; /* kernel 0 has one row */
      entries[m - 1] = entry;
    }
    const int part = limit % 5, rows_of_part = 1 + limit % 7; /* not drawn: kept seeds keep their outcome */
    const int32_t row_block = (int32_t)(draw() % 32), row_block_from = (int32_t)(draw() % 64);
    const ht_dense_plan blocks = {entries, row_block, row_block_from};
    const ht_plan one = {2, {1, {HT_AXIS_M}, {limit}, {NULL}}, &blocks};
    if (kernels[entries[limit - 1].kernel[0]].mr > limit) return 7; /* the table's own promise */
    const ht_dense op = {.n = 16, .k = 1, .panels = 1, .pw = 16, .kernels = kernels,
                         .k_block = part, .k_block_from = limit, .k_block_rows = rows_of_part};
    for (int probe = 0; probe < 40; ++probe) {
      int64_t m = probe < 20 ? 1 + (int64_t)(draw() % 256) : 1 + (int64_t)(draw() % 2147483647);
      if (probe == 20) m = 2147483647;
      ht_composition found;
      ht_dense_look_up(&op, &one, m, &found);
      int64_t rows = 0;
      if (found.count < 1 || found.count > HT_MAX_PARTS || found.split < 0 || found.split > 2) return 8;
      for (int i = 0; i < found.count; ++i) {
        if (found.part[i].tiles < 1 || found.part[i].kernel < kernels || found.part[i].kernel >= kernels + held) return 9;
        rows += found.part[i].tiles * found.part[i].kernel->mr;
      }
      if (rows != m) return 10;
      const int cut = part > 0 && m >= limit;
      if (found.k_block != (cut ? part : 0) || (cut && found.row_block != rows_of_part)) return 11;
      if (count == 1 && probe == 39) printf("%d kernels, limit %d, %d parts\n", held, limit, found.count);
    }
  }
  return 0;
}

static int read_file(const char* path) {
  static char text[1 << 20];
  FILE* file = fopen(path, "rb");
  if (file == NULL) return 1;
  size_t size = fread(text, 1, sizeof text, file);
  fclose(file);
  ht_manifest out;
  const char* wrong = ht_manifest_read(text, size, &out);
  printf("%s\n", wrong == NULL ? "ok" : wrong);
  ht_manifest_clear(&out);
  return 0;
}

static int manifest(long count, const char* path) {
  static char text[1 << 16];
  FILE* file = fopen(path, "rb");
  if (file == NULL) return 1;
  size_t size = fread(text, 1, sizeof text, file);
  fclose(file);
  for (long turn = 0; turn < count; ++turn) {
    size_t cut = draw() % 3 == 0 ? draw() % (size + 1) : size;
    char* copy = malloc(cut + (cut == 0)); /* of the exact size: ASan sees one byte too far */
    memcpy(copy, text, cut);
    for (int edits = (int)(draw() % 4); edits > 0 && cut > 0; --edits) {
      static const char LETTERS[] = "{}[]\",:\\0123456789truefalsenull.eE+- \n\t/u";
      copy[draw() % cut] = draw() % 4 ? LETTERS[draw() % (sizeof LETTERS - 1)] : (char)draw();
    }
    ht_manifest out;
    const char* wrong = ht_manifest_read(copy, cut, &out);
    if (wrong == NULL && (strlen(out.library) != 23 || strstr(out.library, "..") != NULL)) return 2;
    for (int i = 0; i < out.model_count; ++i)
      if (strchr(out.models[i].name, '/') != NULL || out.models[i].name[0] == '.') return 2;
    ht_manifest_clear(&out);
    free(copy);
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 4) return 9;
  long count = atol(argv[2]);
  state = strtoull(argv[3], NULL, 10);
  if (strcmp(argv[1], "check") == 0) return check(count);
  if (strcmp(argv[1], "any") == 0) return any(count);
  if (strcmp(argv[1], "plan") == 0) return plan(count);
  for (int i = 4; i < argc; ++i) {
    int rc = strcmp(argv[1], "read") == 0 ? read_file(argv[i]) : manifest(count, argv[i]);
    if (rc != 0) return rc;
  }
  return 0;
}
