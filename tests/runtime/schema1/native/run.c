/* One call: the output is cut into chunks (row block x column block); in each chunk every region's kernel runs.
 *
 * Columns are the outer order inside a chunk, so a weight panel is read from memory once for all regions of a shape.
 * The result of an element depends on its kernel only, never on the thread that computed it. An output too narrow for all
 * threads is not cut: each sums a part of k, and the parts are added in order, whoever computed them. */
#include <string.h>

#include "ht.h"

/* Work below which splitting further costs more than it balances: about 10 us at 200 GFLOP/s. */
#define HT_CHUNK_FLOPS 2000000
#define HT_ROW_PIECES 8 /* of a row block at most: threads are done within an eighth of one of each other */

/* Of the caller's stack: the sums of all parts of k but the first. With it, the few shapes that need such a split have it. */
#define HT_PARTIAL_FLOATS 8192
#define HT_PART_TERMS 256 /* fewer terms a part are done before a thread wakes */
#define HT_TERMS_STEP 16  /* parts begin at whole cache lines of X */

#define HT_WARM_BYTES (128 * 1024) /* half of the smallest private L2 of server cores */

typedef struct {
  const ht_op* op;
  const ht_composition* composition;
  const ht_call* call;
  int64_t column_chunks, steps; /* a chunk's columns are computed, and the bias added to them, in so many steps */
  int64_t row_blocks;      /* the row tiles of part[0] are shared among them evenly; the last takes the other parts as well */
  int rows_major;
  int64_t parts;           /* of the sum over k, each computed by itself; 1 unless terms are shared */
  float* partial;          /* the sums of part 1 and on, m x n each */
  atomic_int failed;
} ht_job;

/* What of the sum over k a kernel computes: `depth` terms from `from` on, added to what Y holds or not. */
typedef struct {
  int64_t from, depth;
  int add;
} ht_terms;

static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int call_kernel(const ht_op* op, const ht_kernel* kernel, ht_terms terms, const float* x, int64_t ldx, int64_t first_column,
                       float* y, int64_t ldy, const float* w, int64_t tiles, int64_t groups) {
  int64_t x_shape[2] = {tiles * kernel->mr, terms.depth}, x_strides[2] = {ldx, 1};
  int64_t w_shape[3] = {groups * up(kernel->nr, op->pw), terms.depth, op->pw};
  int64_t y_shape[2] = {tiles * kernel->mr, groups * kernel->nr}, y_strides[2] = {ldy, 1};
  int64_t w_strides[3] = {op->k * op->pw, op->pw, 1};
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType fp32 = {kDLFloat, 32, 1};
  /* The kernel's contract is one aligned element; offsets go into the pointers. */
  DLTensor tx = {(void*)(x + terms.from), cpu, 2, fp32, x_shape, x_strides, 0};
  DLTensor tw = {(void*)(w + first_column * op->k + terms.from * op->pw), cpu, 3, fp32, w_shape, w_strides, 0};
  DLTensor ty = {y, cpu, 2, fp32, y_shape, y_strides, 0};
  TVMFFIAny args[6];
  TVMFFIAny result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  args[0].type_index = args[1].type_index = args[2].type_index = kTVMFFIDLTensorPtr;
  args[0].v_ptr = &tx;
  args[1].v_ptr = &tw;
  args[2].v_ptr = &ty;
  args[3].type_index = args[4].type_index = args[5].type_index = kTVMFFIInt;
  args[3].v_int64 = tiles;
  args[4].v_int64 = groups;
  args[5].v_int64 = terms.add;
  return kernel->fn(NULL, args, 6, &result);
}

/* y[j] += more[j] for j of [first, last). */
static void add_row(float* y, const float* more, int64_t first, int64_t last) {
  typedef float quad __attribute__((vector_size(16), aligned(4), may_alias)); /* every x86-64 has four lanes */
  int64_t j = first;
  for (; j + 4 <= last; j += 4) *(quad*)(y + j) += *(const quad*)(more + j);
  for (; j < last; ++j) y[j] += more[j];
}

/* y[row, first..last) += bias[first..last): one rounding after the sum over k, as in addmm. */
static void add_bias(const ht_call* call, int64_t row, int64_t rows, int64_t first, int64_t last) {
  for (int64_t i = row; i < row + rows; ++i) add_row(call->y + i * call->ldy, call->bias, first, last);
}

typedef struct { /* piece `index` of `count` even ones of the columns; the first or the last have the odd tiles */
  int64_t index, count;
  int first;
} ht_piece;

/* Where piece `index` begins. Every region has its own boundaries, at whole tiles of its kernel's width: common ones would be
 * uneven where two widths have a large common multiple. The tile nearest to an even share of what is computed, since the last
 * one may be narrow. */
static int64_t column_of(const ht_op* op, const ht_kernel* kernel, ht_piece piece, int64_t index) {
  if (index == piece.count) return op->n;
  int64_t whole = op->n / kernel->nr * kernel->nr, rest = op->n - whole;
  int64_t computed = whole + (rest == 0 ? 0 : rest <= kernel->nt ? kernel->nt : kernel->nr);
  int64_t tile_of_all = piece.count * kernel->nr;
  int64_t column = (2 * computed * index + tile_of_all - !piece.first) / (2 * tile_of_all) * kernel->nr;
  return column < op->n ? column : op->n;
}

/* A piece of the columns of `tiles` row tiles from `row` on. The last tile may reach past n: the kernel's tail computes it where
 * it has one. What that writes past n, too, goes through a scratch tile (the packed weight is zero there), with all terms of
 * `share` at once, and the columns that exist are copied. The bias follows the last terms. */
static int region(const ht_op* op, const ht_call* call, const ht_kernel* kernel, ht_terms share, ht_terms terms, int64_t row,
                  int64_t tiles, ht_piece piece) {
  int64_t first = column_of(op, kernel, piece, piece.index), last = column_of(op, kernel, piece, piece.index + 1);
  if (first == last) return 0;
  const float* x = call->x + row * call->ldx;
  float* y = call->y + row * call->ldy;
  int64_t groups = (last - first) / kernel->nr;
  if (groups > 0) {
    int rc = call_kernel(op, kernel, terms, x, call->ldx, first, y + first, call->ldy, call->w, tiles, groups);
    if (rc != 0) return rc;
  }
  int64_t done = first + groups * kernel->nr;
  const ht_kernel tail = {.fn = kernel->tail, .mr = kernel->mr, .nr = kernel->nt};
  const ht_kernel* narrow = last - done <= kernel->nt ? &tail : kernel;
  if (done < last && last - done == narrow->nr) {
    int rc = call_kernel(op, narrow, terms, x, call->ldx, done, y + done, call->ldy, call->w, tiles, 1);
    if (rc != 0) return rc;
  } else if (done < last && !terms.add) {
    float scratch[HT_MAX_TILE];
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int64_t top = tile * kernel->mr;
      int rc = call_kernel(op, narrow, share, x + top * call->ldx, call->ldx, done, scratch, narrow->nr, call->w, 1, 1);
      if (rc != 0) return rc;
      for (int64_t i = 0; i < kernel->mr; ++i)
        memcpy(y + (top + i) * call->ldy + done, scratch + i * narrow->nr, (size_t)(last - done) * sizeof(float));
    }
  }
  int ended = terms.from + terms.depth == share.from + share.depth;
  if (ended && call->bias != NULL) add_bias(call, row, tiles * kernel->mr, first, last);
  return 0;
}

/* The terms of `share` for a piece of the columns of a row block. The bulk's odd tiles are the caller's, who begins first, the
 * other regions' are not: one thread with all of them would be late. */
static int run_columns(const ht_job* job, const ht_call* call, ht_terms share, int64_t block, int64_t index, int64_t pieces) {
  const ht_composition* composition = job->composition;
  const ht_part* bulk = &composition->part[0];
  /* Even blocks: a short last one would stream the whole weight for a few rows. The first have the odd tiles, since the last has
   * the other regions. */
  int64_t tile = up(bulk->tiles * block, job->row_blocks), tiles = up(bulk->tiles * (block + 1), job->row_blocks) - tile;
  int64_t top = tile * bulk->kernel->mr, row = top + tiles * bulk->kernel->mr;
  int64_t bulk_end = row, end = share.from + share.depth;
  int rc = 0;
  for (ht_terms terms = {share.from, composition->k_block > 0 ? composition->k_block : share.depth, 0};
       terms.from < end && rc == 0; terms.from += terms.depth, terms.add = 1) {
    if (terms.depth > end - terms.from) terms.depth = end - terms.from;
    rc = region(job->op, call, bulk->kernel, share, terms, top, tiles, (ht_piece){index, pieces, 1});
    row = bulk_end;
    for (int i = 1; i < composition->count && rc == 0 && block == job->row_blocks - 1; ++i) {
      const ht_part* part = &composition->part[i];
      rc = region(job->op, call, part->kernel, share, terms, row, part->tiles, (ht_piece){index, pieces, 0});
      row += part->tiles * part->kernel->mr;
    }
  }
  return rc;
}

/* Part `index` of the sum over k for the whole output: the first into Y, the others beside it. */
static void run_part(void* arg, int64_t index) {
  ht_job* job = arg;
  int64_t lines = job->op->k / HT_TERMS_STEP, n = job->op->n;
  int64_t from = lines * index / job->parts * HT_TERMS_STEP;
  int64_t end = index + 1 < job->parts ? lines * (index + 1) / job->parts * HT_TERMS_STEP : job->op->k;
  ht_terms share = {from, end - from, 0};
  ht_call call = *job->call;
  call.bias = NULL; /* added to the whole sum */
  if (index > 0) {
    call.y = job->partial + (index - 1) * call.m * n;
    call.ldy = n;
  }
  for (int64_t piece = 0; piece < job->column_chunks; ++piece)
    if (run_columns(job, &call, share, 0, piece, job->column_chunks) != 0)
      atomic_store_explicit(&job->failed, 1, memory_order_relaxed);
}

/* The terms shared by threads. The parts and the order of their addition depend on `threads` alone, not on who is free. A
 * function of its own, so that no other call has its partial sums in the stack's frame. */
__attribute__((noinline)) static void run_terms(ht_job* job, int threads) {
  _Alignas(64) float partial[HT_PARTIAL_FLOATS];
  const ht_call* call = job->call;
  int64_t n = job->op->n;
  job->partial = partial;
  ht_pool_run(run_part, job, job->parts, threads);
  for (int64_t part = 0; part + 1 < job->parts; ++part)
    for (int64_t i = 0; i < call->m; ++i) add_row(call->y + i * call->ldy, partial + (part * call->m + i) * n, 0, n);
  if (call->bias != NULL) add_bias(call, 0, call->m, 0, n);
}

static void run_chunk(void* arg, int64_t index) {
  ht_job* job = arg;
  int64_t block = job->rows_major ? index / job->column_chunks : index % job->row_blocks;
  int64_t column = job->rows_major ? index % job->column_chunks : index / job->row_blocks;
  const ht_terms all = {0, job->op->k, 0};
  for (int64_t step = 0; step < job->steps; ++step)
    if (run_columns(job, job->call, all, block, column * job->steps + step, job->column_chunks * job->steps) != 0)
      atomic_store_explicit(&job->failed, 1, memory_order_relaxed);
}

/* `units` shared by `threads`: pieces a thread, each of at least `least` units where there are so many. */
static int64_t pieces(int64_t units, int threads, int64_t least) {
  int64_t found = up(units, threads) / (least > 0 ? least : 1);
  if (found > 4) found = 4; /* enough for a free thread to help a late one */
  return found > 0 ? found : 1;
}

/* Into how many parts the sum is cut for so many threads; 1 where it is too short, or the output too large for that. */
static int64_t parts_of(const ht_op* op, const ht_call* call, int threads) {
  int64_t parts = op->k / HT_PART_TERMS, most = HT_PARTIAL_FLOATS / op->n / call->m + 1;
  if (parts > threads) parts = threads;
  if (parts > most) parts = most;
  return parts > 1 ? parts : 1;
}

int ht_run(const ht_op* op, const ht_composition* composition, const ht_call* call, int threads) {
  if (composition->count == 0) return 0;
  const ht_part* bulk = &composition->part[0];
  int64_t unit = bulk->kernel->nr;
  int split = threads > 1 ? composition->split : HT_SERIAL;
  if (split == HT_SERIAL) threads = 1;
  int64_t parts = split == HT_TERMS ? parts_of(op, call, threads) : 1;
  if (split == HT_TERMS && parts == 1) split = HT_COLUMNS;
  int64_t bulk_per_block = bulk->tiles;
  if (composition->row_block > 0) {
    bulk_per_block = composition->row_block / bulk->kernel->mr;
    if (bulk_per_block < 1) bulk_per_block = 1;
    if (bulk_per_block > bulk->tiles) bulk_per_block = bulk->tiles;
  }
  int64_t units = up(op->n, unit), column_chunks = 1;
  double column_flops = 2.0 * (double)call->m * (double)op->k;
  if (split == HT_COLUMNS) {
    int64_t least = (int64_t)(HT_CHUNK_FLOPS / (column_flops * (double)unit)) + 1;
    column_chunks = pieces(units, threads, least) * threads;
  } else if (split == HT_ROWS) { /* every block streams the whole weight: no more of them than threads and caches ask for */
    int64_t share = up(bulk->tiles, threads);
    if (bulk_per_block > share) bulk_per_block = share;
  }
  if (composition->count > 1) { /* the next region finds the weight in cache */
    int64_t most = op->col_block / unit; /* units */
    int64_t least = up(units, most > 0 ? most : 1);
    if (column_chunks < least) column_chunks = split == HT_COLUMNS ? up(least, threads) * threads : least;
  }
  int64_t row_blocks = up(bulk->tiles, bulk_per_block);
  if (split == HT_ROWS) { /* as many for each thread, and in pieces: who has a row tile less helps the others */
    row_blocks = up(row_blocks, threads) * threads;
    if (row_blocks > bulk->tiles) row_blocks = bulk->tiles;
    int64_t most = (int64_t)(column_flops * (double)op->n / (double)row_blocks / HT_CHUNK_FLOPS);
    if (most > HT_ROW_PIECES) most = HT_ROW_PIECES;
    if (row_blocks % threads != 0) most = (most / threads + 1) * threads; /* row tiles are fewer, or odd: as many pieces for each */
    if (column_chunks < most) column_chunks = most;
  }
  if (column_chunks > units) column_chunks = units;
  int64_t steps = 1;
  if (call->bias != NULL) { /* Y must still be in L2 when the bias comes; columns are the outer loop, so it costs nothing */
    int64_t rows = (up(bulk->tiles, row_blocks) + 1) * bulk->kernel->mr;
    int64_t most = HT_WARM_BYTES / (int64_t)sizeof(float) / rows / unit; /* units */
    steps = up(up(units, column_chunks), most > 0 ? most : 1);
  }
  ht_job job = {.op = op,
                .composition = composition,
                .call = call,
                .column_chunks = column_chunks,
                .steps = steps,
                .row_blocks = row_blocks,
                .rows_major = split != HT_COLUMNS,
                .parts = parts};
  atomic_init(&job.failed, 0);
  if (parts > 1) {
    job.row_blocks = 1;
    run_terms(&job, threads);
    return atomic_load_explicit(&job.failed, memory_order_relaxed) ? -1 : 0;
  }
  int64_t chunks = row_blocks * column_chunks;
  if (threads == 1 || chunks == 1) {
    for (int64_t i = 0; i < chunks; ++i) run_chunk(&job, i);
  } else {
    ht_pool_run(run_chunk, &job, chunks, threads);
  }
  return atomic_load_explicit(&job.failed, memory_order_relaxed) ? -1 : 0;
}
