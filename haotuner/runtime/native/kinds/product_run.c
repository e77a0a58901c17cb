/* batch_matmul: one call. Threads share pieces of the output: matrices, and rows or columns of each where the plan says so. In a
 * piece, a block of W (columns x terms) is copied as the programs read it, or read where it is, and rows pass over it; every
 * element is one sum in the order of its terms, however it is cut. */
#include <immintrin.h>
#include <string.h>

#include "product.h"
#include "scratchpad.h"

#define W_FLOATS (32 * 1024) /* 128 KiB of a block of W: half of the smallest private L2 of server cores */
#define X_FLOATS (16 * 1024) /* of X, where its strides are none that the programs read */
#define ROWS 128             /* of a block: their terms stay in L2 beside W's */
#define TERMS 1024           /* of a block at most, so that a block of W has columns enough for a tile, one of X rows */
#define FAR_FLOATS (256 * 1024) /* 1 MiB of outputs: no L2 of a server's core holds them beside the factors */
#define AHEAD 16 /* terms: with fewer, asking for lines of the output takes as long as the products */
#define STREAMED 6 /* rows: a tile of as many multiplies a vector of W so often that L2 brings the next in time */
#define ARGUMENTS 13 /* of a program */
#define WIDEST (HT_PRODUCT_VECTORS * 16)

_Static_assert(W_FLOATS >= TERMS / 2 * WIDEST && X_FLOATS >= TERMS * HT_PRODUCT_ROWS, "blocks hold a tile");

/* Of each thread: too large for the stack of a server's own threads. */
typedef struct {
  _Alignas(64) float w[W_FLOATS];
  _Alignas(64) float x[X_FLOATS];
  _Alignas(64) float y[ROWS * WIDEST];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_PRODUCT, sizeof(rooms)))

typedef struct { /* an extent in even tiles: `wide` of `size` units, then `narrow` of a unit less */
  int64_t size, wide, narrow;
} cut;

/* Columns in even groups of vectors. If the last vector is not whole, its group begins earlier, so that some columns are computed twice, with
 * the same bits. Where there are not as many columns, or they would be added twice, it goes through `room` instead, and its W is always
 * a copy, with zeros past the end. */
typedef struct {
  cut groups;
  int64_t last;  /* vectors of the group that holds a part of one; 0: there is none */
  int64_t begin; /* its first column */
  int64_t part;  /* columns of it that go through `room`; 0: it is as any other */
} columns_cut;

typedef struct { /* one block: rows [row, row + rows) of a matrix, `columns` of it from `column` on, `depth` terms from `from` on */
  const float *x, *w;
  float* y; /* at the block's first element */
  int64_t x_down, x_right, w_down, w_right, y_down;
  int64_t rows, columns, from, depth;
} block;

typedef struct { /* one call of a program: tiles of one height over groups of one width. All but its pointers is the same for every matrix */
  ht_kernel_fn fn;
  TVMFFIAny args[ARGUMENTS];
  int64_t x, w, y;           /* from the block's first elements, or those of the copy of W, to the call's */
  int copied;                /* W is read from `room` */
  int64_t rows, width, part; /* part: the group's columns, where its last vector is not whole, else 0 */
  int64_t calls;             /* tiles that are called one by one; 0: one call for all */
} step;

#define STEPS 6 /* three widths of groups, two heights of tiles */

typedef struct { /* how a box of the output is cut into blocks: the same for every matrix, and worked out once where no thread has a part */
  int64_t terms, columns, rows; /* of a block at most */
  int all, copied;              /* all of W is copied; X has strides that the programs cannot read */
  int64_t first_columns, first_rows; /* of the first block: those of small matrices are all there is */
  columns_cut by_columns;
  step first[STEPS]; /* of the first block */
  int first_count;
} cuts;

typedef struct {
  const ht_product* product;
  const ht_product_kernel* kernel;
  const ht_call* call;
  int axis;
  int64_t pieces, chunks; /* of a matrix along the axis; of all matrices */
  cuts* whole;            /* of a matrix, where pieces is 1; for a chunk to copy where there are several: calls write their pointers there */
  int beside;             /* something follows the product */
  int small;              /* several matrices at a time */
  int few;                /* few rows or columns, without tiles */
  int far;                /* what a thread writes finds no room in L2 */
  atomic_int failed;
} job;

static cut cut_of(int64_t units, int64_t most) {
  int64_t tiles = ceil_div(units, most), size = ceil_div(units, tiles);
  return (cut){size, units - tiles * (size - 1), tiles * size - units};
}

/* `whole`: the sum is not computed in parts. */
static columns_cut cut_columns(const job* j, int64_t columns, int whole) {
  const int64_t lanes = j->product->lanes;
  columns_cut found = {.groups = cut_of(ceil_div(columns, lanes), j->kernel->vectors)};
  if (columns % lanes == 0) return found;
  found.last = found.groups.narrow > 0 ? found.groups.size - 1 : found.groups.size;
  if (found.groups.narrow > 0) --found.groups.narrow;
  else --found.groups.wide;
  found.begin = (found.groups.wide * found.groups.size + found.groups.narrow * (found.groups.size - 1)) * lanes;
  if (whole && columns >= found.last * lanes) found.begin = columns - found.last * lanes;
  else found.part = columns - found.begin;
  return found;
}

/* Vectors of the groups that are as wide, of those that are narrower by one, and of the group that holds a part of a vector. */
static int64_t vectors_of(const columns_cut* c, int kind) {
  return kind == 0 ? c->groups.size : kind == 1 ? c->groups.size - 1 : c->last;
}

static int64_t groups_of(const columns_cut* c, int kind) {
  return kind == 0 ? c->groups.wide : kind == 1 ? c->groups.narrow : c->last > 0;
}

/* W of the block where the programs read it: groups one after the other, each (depth, width). */
static void pack_w(const job* j, const block* b, const columns_cut* c, int all) {
  int64_t lanes = j->product->lanes, column = 0;
  float* to = ROOM->w;
  for (int kind = 0; kind < 3; ++kind) {
    const int64_t vectors = vectors_of(c, kind), count = groups_of(c, kind);
    if (kind == 2) column = c->begin;
    for (int64_t i = 0; i < count; ++i, column += vectors * lanes, to += vectors * lanes * b->depth)
      if (all || (kind == 2 && c->part > 0))
        ht_product_pack(to, vectors * lanes, b->w + column * b->w_right, b->w_down, b->w_right, b->depth,
                        min_i64(vectors * lanes, b->columns - column), (int)lanes);
  }
}

/* The tallest tile of so many vectors that holds no more sums than the kernel's largest: four rows of one vector would wait for their own
 * results. The pack has all of these programs (microkernels/cpu/product.py). */
static int64_t tallest(const ht_product_kernel* kernel, int64_t vectors) {
  return vectors < 1 ? 1 : min_i64(HT_PRODUCT_ROWS, (int64_t)kernel->rows * kernel->vectors / vectors);
}

/* The calls of a block; how many. */
static int steps_of(const job* j, const block* b, const columns_cut* c, const cuts* by, step* steps) {
  const ht_product* p = j->product;
  const int64_t x_stride = by->copied ? (p->x_across ? b->rows : b->depth) : p->x_across ? b->x_right : b->x_down;
  const int64_t x_row = p->x_across ? 1 : x_stride;
  int64_t column = 0, packed = 0;
  int count = 0;
  for (int kind = 0; kind < 3; ++kind) {
    const int64_t vectors = vectors_of(c, kind), groups = groups_of(c, kind), width = vectors * p->lanes;
    if (groups == 0) continue;
    const int64_t part = kind == 2 ? c->part : 0;
    const int copied = by->all || part > 0;
    if (kind == 2) column = c->begin;
    const cut rows = cut_of(b->rows, tallest(j->kernel, vectors));
    for (int narrow = 0; narrow < 2; ++narrow) {
      const int64_t size = rows.size - narrow, tiles = narrow ? rows.narrow : rows.wide, row = narrow ? rows.wide * rows.size : 0;
      if (tiles == 0) continue;
      const int far = j->far && part == 0 && b->depth >= AHEAD;
      /* Along the row, where it is far: y is written from end to end, and W comes from L2 once a tile. */
      const int64_t calls = far && groups > 1 && size >= STREAMED ? tiles : 0;
      const int64_t numbers[ARGUMENTS - 3] = {size * x_row, x_stride, copied ? width * b->depth : width, copied ? width : b->w_down,
                                              part ? width : b->y_down, b->depth, calls > 0 ? 1 : tiles, groups, b->from > 0, far};
      step* s = &steps[count++];
      s->fn = p->tiles[(vectors - 1) * HT_PRODUCT_ROWS + size - 1];
      s->x = row * x_row, s->w = copied ? packed : column, s->y = row * b->y_down + column;
      s->copied = copied;
      s->rows = size * tiles, s->width = width, s->part = part, s->calls = calls;
      for (int i = 0; i < ARGUMENTS; ++i) {
        s->args[i].type_index = i < 3 ? kTVMFFIOpaquePtr : kTVMFFIInt;
        s->args[i].zero_padding = 0;
        if (i >= 3) s->args[i].v_int64 = numbers[i - 3];
      }
    }
    packed += groups * width * b->depth;
    column += groups * width;
  }
  return count;
}

__attribute__((target("avx512f"))) static void copy_16(float* to, int64_t to_down, const float* from, int64_t down, int64_t rows, int64_t columns) {
  const __mmask16 last = (__mmask16)((1u << ((columns - 1) % 16 + 1)) - 1);
  for (int64_t i = 0; i < rows; ++i, to += to_down, from += down) {
    int64_t j = 0;
    for (; j + 16 < columns; j += 16) _mm512_storeu_ps(to + j, _mm512_loadu_ps(from + j));
    _mm512_mask_storeu_ps(to + j, last, _mm512_maskz_loadu_ps(last, from + j));
  }
}

static void copy(float* to, int64_t to_down, const float* from, int64_t down, int64_t rows, int64_t columns, int lanes) {
  if (lanes >= 16) copy_16(to, to_down, from, down, rows, columns);
  else
    for (int64_t i = 0; i < rows; ++i) memcpy(to + i * to_down, from + i * down, (size_t)columns * sizeof(float));
}

/* `x`: the block's, or its copy. */
static int run_step(step* s, const float* x, const block* b, int lanes) {
  float* y = b->y + s->y;
  TVMFFIAny result = {.type_index = kTVMFFINone};
  s->args[0].v_ptr = (void*)(x + s->x);
  s->args[1].v_ptr = (void*)((s->copied ? ROOM->w : b->w) + s->w);
  s->args[2].v_ptr = s->part == 0 ? y : ROOM->y;
  if (s->fn == NULL) return -1;
  for (int64_t i = 0, tall = s->calls > 0 ? s->rows / s->calls : 0; i < s->calls; ++i) {
    s->args[0].v_ptr = (void*)(x + s->x + i * s->args[3].v_int64);
    s->args[2].v_ptr = y + i * tall * b->y_down;
    if (s->fn(NULL, s->args, ARGUMENTS, &result) != 0) return -1;
  }
  if (s->calls > 0) return 0;
  if (s->part == 0) return s->fn(NULL, s->args, ARGUMENTS, &result);
  if (b->from > 0) copy(ROOM->y, s->width, y, b->y_down, s->rows, s->part, lanes);
  const int rc = s->fn(NULL, s->args, ARGUMENTS, &result);
  copy(y, b->y_down, ROOM->y, s->width, s->rows, s->part, lanes);
  return rc;
}

/* The rows of one block over columns that were made ready. */
static int run_block(const job* j, const block* b, const columns_cut* c, cuts* by) {
  const ht_product* p = j->product;
  const float* x = b->x;
  if (by->copied) {
    if (p->x_across) ht_product_pack(ROOM->x, b->rows, b->x, b->x_right, b->x_down, b->depth, b->rows, p->lanes);
    else ht_product_pack(ROOM->x, b->depth, b->x, b->x_down, b->x_right, b->rows, b->depth, p->lanes);
    x = ROOM->x;
  }
  step own[STEPS], *steps = by->first;
  int count = by->first_count;
  if (b->from > 0 || b->rows != by->first_rows || b->columns != by->first_columns) count = steps_of(j, b, c, by, steps = own);
  for (int i = 0; i < count; ++i)
    if (run_step(&steps[i], x, b, p->lanes) != 0) return -1;
  return 0;
}

ht_product_beside ht_product_beside_of(const ht_call* call, const int64_t* offsets, int64_t row, int64_t column) {
  const ht_view* views = call->product.views;
  const float* at[HT_MAX_OPERANDS];
  for (int i = HT_PRODUCT_BIAS; i <= HT_PRODUCT_MASK; ++i)
    at[i] = views[i].data == NULL ? NULL
                                  : (const float*)views[i].data + offsets[i] + row * views[i].strides[0] + column * views[i].strides[1];
  return (ht_product_beside){at[HT_PRODUCT_SCALE],
                             at[HT_PRODUCT_BIAS],
                             at[HT_PRODUCT_MASK],
                             views[HT_PRODUCT_BIAS].strides[1],
                             views[HT_PRODUCT_MASK].strides[0],
                             views[HT_PRODUCT_MASK].strides[1]};
}

static block block_of(const ht_call* call, int64_t rows, int64_t columns, int64_t depth) {
  const ht_view *x = &call->product.views[HT_PRODUCT_X], *w = &call->product.views[HT_PRODUCT_W], *y = &call->product.views[HT_PRODUCT_Y];
  return (block){.w_down = w->strides[0], .w_right = w->strides[1], .x_down = x->strides[0], .x_right = x->strides[1], .y_down = y->strides[0],
                 .rows = rows, .columns = columns, .depth = depth};
}

/* Fills what is read of it: a small call has no time for more. */
static void cuts_of(const job* j, int64_t at_rows, int64_t at_columns, cuts* found) {
  const ht_product* p = j->product;
  const ht_view *x = &j->call->product.views[HT_PRODUCT_X], *w = &j->call->product.views[HT_PRODUCT_W];
  int64_t widest = p->lanes * j->kernel->vectors, k = j->call->extents[HT_PRODUCT_K];
  int64_t terms = j->kernel->k_block > 0 ? j->kernel->k_block : TERMS;
  found->all = j->kernel->packs || (w->strides[1] != 1 && at_columns > 1);
  terms = min_i64(terms, min_i64(TERMS, W_FLOATS / widest));
  if (k > terms) terms = ceil_div(k, ceil_div(k, terms));
  int64_t depth = min_i64(k, terms) > 0 ? min_i64(k, terms) : 1, most = W_FLOATS / depth / widest * widest;
  found->terms = terms;
  found->columns = ceil_div(ceil_div(at_columns, ceil_div(at_columns, most)), widest) * widest;
  found->copied = (p->x_across ? x->strides[0] : x->strides[1]) != 1 && (p->x_across ? at_rows : depth) > 1;
  int64_t tall = found->copied ? min_i64(ROWS, X_FLOATS / depth) : ROWS, rows = ceil_div(at_rows, ceil_div(at_rows, tall));
  found->rows = min_i64(tall, ceil_div(rows, j->kernel->rows) * j->kernel->rows);
  found->first_columns = min_i64(found->columns, at_columns);
  found->first_rows = min_i64(found->rows, at_rows);
  found->by_columns = cut_columns(j, found->first_columns, terms >= k);
  const block first = block_of(j->call, found->first_rows, found->first_columns, min_i64(k, terms));
  found->first_count = steps_of(j, &first, &found->by_columns, found, found->first);
}

static int run_box(const job* j, const int64_t* offsets, ht_product_box at, cuts* by) {
  const ht_product* p = j->product;
  const ht_view* views = j->call->product.views;
  const ht_view *x = &views[HT_PRODUCT_X], *w = &views[HT_PRODUCT_W], *y = &views[HT_PRODUCT_Y];
  const int64_t k = j->call->extents[HT_PRODUCT_K], terms = by->terms, columns = by->columns, rows = by->rows;
  for (int64_t column = 0; column < at.columns; column += columns) {
    block b = block_of(j->call, 0, min_i64(columns, at.columns - column), 0);
    columns_cut other;
    const columns_cut* c = &by->by_columns;
    if (b.columns != by->first_columns) other = cut_columns(j, b.columns, terms >= k), c = &other;
    for (b.from = 0; b.from < k || (k == 0 && b.from == 0); b.from += terms) {
      b.depth = min_i64(terms, k - b.from);
      b.w = (const float*)w->data + offsets[HT_PRODUCT_W] + (at.column + column) * b.w_right + b.from * b.w_down;
      if ((by->all || c->part > 0) && k > 0) pack_w(j, &b, c, by->all);
      for (int64_t row = at.row; row < at.row + at.rows; row += rows) {
        b.rows = min_i64(rows, at.row + at.rows - row);
        b.x = (const float*)x->data + offsets[HT_PRODUCT_X] + row * b.x_down + b.from * b.x_right;
        b.y = (float*)y->data + offsets[HT_PRODUCT_Y] + row * b.y_down + at.column + column;
        if (k == 0)
          for (int64_t i = 0; i < b.rows; ++i) memset(b.y + i * b.y_down, 0, (size_t)b.columns * sizeof(float));
        else if (run_block(j, &b, c, by) != 0) return -1;
        if (b.from + b.depth < k || !j->beside) continue;
        ht_product_beside beside = ht_product_beside_of(j->call, offsets, row, at.column + column);
        if (ht_product_after(b.y, b.y_down, b.rows, b.columns, &beside, p) != 0) return -1;
      }
    }
  }
  return 0;
}

void ht_product_offsets(const ht_call* call, int64_t matrix, int64_t offsets[HT_MAX_OPERANDS]) {
  const ht_product_call* product = &call->product;
  for (int i = 0; i < HT_MAX_OPERANDS; ++i) offsets[i] = 0;
  for (int a = product->batch_axes - 1; a >= 0; --a) {
    const int64_t at = a == 0 ? matrix : matrix % product->batch[a]; /* a division takes as long as a small matrix */
    if (a > 0) matrix /= product->batch[a];
    for (int i = 0; i <= HT_PRODUCT_MASK; ++i)
      if (product->views[i].data != NULL) offsets[i] += at * product->views[i].strides[2 + a];
  }
}

/* Items are pieces of matrices, those of one matrix side by side; a chunk is a run of them. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  int64_t items = j->call->extents[HT_PRODUCT_B] * j->pieces;
  const int32_t place = (int32_t)(j->kernel - j->product->kernels);
  const ht_kernel* typed = j->product->typed == NULL ? NULL : &j->product->typed_kernels[place];
  if (j->small) {
    const int64_t lanes = j->product->lanes, groups = ceil_div(items, lanes), first = groups * index / j->chunks * lanes;
    if (ht_product_small(j->product, j->call, first, min_i64(items, groups * (index + 1) / j->chunks * lanes), j->beside) != 0)
      atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
    return;
  }
  if (j->call->extents[HT_PRODUCT_M] == 1 && j->call->extents[HT_PRODUCT_N] == 1) {
    const int64_t first = items * index / j->chunks, last = items * (index + 1) / j->chunks;
    const int rc = typed != NULL ? ht_product_single_typed(j->product, typed, j->call, first, last, j->beside)
                                 : ht_product_single(j->product, j->call, first, last, j->beside);
    if (rc < 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
    if (rc <= 0) return;
  }
  cuts other, *own = j->chunks == 1 && j->pieces == 1 ? j->whole : &other;
  if (own == &other && j->pieces == 1 && !j->few && typed == NULL) other = *j->whole;
  for (int64_t item = items * index / j->chunks, end = items * (index + 1) / j->chunks; item < end; ++item) {
    const int64_t matrix = j->pieces == 1 ? item : item / j->pieces, piece = item - matrix * j->pieces;
    int64_t offsets[HT_MAX_OPERANDS];
    ht_product_offsets(j->call, matrix, offsets);
    ht_product_box all = {0, j->call->extents[HT_PRODUCT_M], 0, j->call->extents[HT_PRODUCT_N]};
    if (j->axis == HT_PRODUCT_M || j->axis == HT_PRODUCT_N) { /* at whole tiles */
      int rows = j->axis == HT_PRODUCT_M;
      int64_t extent = rows ? all.rows : all.columns, unit = rows ? 1 : j->product->lanes, units = ceil_div(extent, unit);
      int64_t first = units * piece / j->pieces * unit, last = min_i64(extent, units * (piece + 1) / j->pieces * unit);
      if (rows) all.row = first, all.rows = last - first;
      else all.column = first, all.columns = last - first;
    }
    int rc;
    if (typed != NULL) rc = ht_product_run_typed(j->product, place, j->call, offsets, all, j->beside);
    else if (j->few) rc = ht_product_few(j->product, j->call, offsets, all, j->beside);
    else {
      if (j->pieces > 1) cuts_of(j, all.rows, all.columns, own);
      rc = run_box(j, offsets, all, own);
    }
    if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
  }
}

int ht_product_run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  const ht_product* product = op->data;
  const ht_sliced_entry* entry = (const ht_sliced_entry*)plan->data + ht_look_up(&plan->table, call->extents);
  cuts whole;
  job j = {.product = product, .kernel = &product->kernels[entry->kernel], .call = call, .axis = entry->axis, .pieces = 1, .chunks = 1, .whole = &whole,
           .beside = product->epilogue != NULL};
  atomic_init(&j.failed, 0);
  if (entry->axis == HT_WHOLE) threads = 1;
  j.small = product->typed == NULL && ht_product_is_small(product, call);
  j.few = product->typed == NULL && !j.small && ht_product_is_few(product, call);
  if (threads > 1) {
    int64_t wanted = 4 * (int64_t)threads, matrices = call->extents[HT_PRODUCT_B]; /* enough for a free thread to help a late one */
    if (j.small) matrices = ceil_div(matrices, product->lanes);
    else if (j.axis != HT_PRODUCT_B) {
      int64_t unit = j.axis == HT_PRODUCT_M ? j.kernel->rows : j.kernel->vectors * product->lanes;
      j.pieces = min_i64(ceil_div(wanted, matrices), ceil_div(call->extents[j.axis], unit));
    }
    j.chunks = min_i64(wanted, matrices * j.pieces);
  }
  j.far = call->extents[HT_PRODUCT_B] * call->extents[HT_PRODUCT_M] > FAR_FLOATS * (int64_t)threads / call->extents[HT_PRODUCT_N];
  if (j.pieces == 1 && product->typed == NULL && !j.small && !j.few) cuts_of(&j, call->extents[HT_PRODUCT_M], call->extents[HT_PRODUCT_N], &whole);
  for (int i = HT_PRODUCT_BIAS; i <= HT_PRODUCT_MASK; ++i) j.beside |= call->product.views[i].data != NULL;
  if (j.chunks == 1) run_chunk(&j, 0);
  else ht_pool_run(run_chunk, &j, j.chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}

static const char* kernel_name(const ht_op* op, int32_t index) { return ((const ht_product*)op->data)->kernels[index].name; }

const ht_kind ht_product_kind = {
    .name = "product", .check = ht_product_check, .run = ht_product_run, .kernel_name = kernel_name, .sized = ht_product_sized};
