/* Shared words of the serving runtime. Compiled into every pack together with its micro-kernels.
 *
 * The runtime serves dense: Y[m,n] = X[m,k] . W[n,k]^T with W packed as panels [panel][k][pw].
 * Everything a call needs is constant data of the pack (ht_op) or lives on the caller's stack. */
#ifndef HT_H_
#define HT_H_

#include <stdatomic.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

#define HT_MAX_PARTS 4   /* three regions, and one more where a shape beyond the table repeats the bulk region */
#define HT_MAX_THREADS 256
#define HT_MAX_TILE 512  /* floats of the largest tile: 32 registers of 16 lanes */

typedef int (*ht_kernel_fn)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

typedef struct { /* one micro-kernel; computes tiles of mr rows x nr columns from panels of pw columns */
  const char* name;
  ht_kernel_fn fn;
  int32_t mr, nr, pw;
  ht_kernel_fn tail; /* the same of only the first nt columns of a tile, for the last one of a row; NULL: fn does that, too */
  int32_t nt;
} ht_kernel;

typedef struct { /* a row of the plan table: the regions of one m, largest first; tiles[i] == 0 ends the list */
  uint16_t tiles[3];
  uint8_t kernel[3];
  uint8_t split; /* HT_SERIAL and on */
} ht_entry;

/* What threads share: nothing, the columns of Y, its rows, the terms of the sum over k (outputs too narrow for all threads). */
enum { HT_SERIAL = 0, HT_COLUMNS = 1, HT_ROWS = 2, HT_TERMS = 3 };

typedef struct { /* shape -> composition for one thread count; entries[m-1] for 1 <= m <= limit */
  int32_t threads;
  int32_t limit;
  const ht_entry* entries;
  int32_t row_block;      /* rows whose X stays in L2 while the weight streams past; 0: do not block */
  int32_t row_block_from; /* blocking pays only from this m on */
} ht_plan;

typedef struct {
  const char* name;
  int64_t n, k, panels; /* panels allocated, >= what any kernel of the op reads */
  int32_t pw;
  int32_t col_block; /* columns whose weight stays in L2 between the regions of one shape */
  int32_t k_block;      /* terms of the sum whose weight panel stays in L2 while rows pass; 0: all at once */
  int32_t k_block_from; /* from this m on */
  int32_t k_block_rows; /* row_block where k is blocked: X takes less of L2 there */
  int64_t first_m, last_m; /* tuned range */
  const ht_kernel* kernels;
  const ht_plan* plans;
  int32_t plan_count;
  int32_t weight_kn; /* users store this op's weight as (k, n) instead of (n, k) */
} ht_op;

typedef struct {
  const ht_kernel* kernel;
  int64_t tiles;
} ht_part;

typedef struct {
  ht_part part[HT_MAX_PARTS];
  int32_t count;
  int32_t split;
  int32_t row_block;
  int32_t k_block;
} ht_composition;

typedef struct { /* one checked call: row strides in elements */
  const float* x;
  int64_t ldx;
  const float* w;
  float* y;
  int64_t ldy;
  int64_t m;
  const float* bias; /* n elements added to every row, or NULL */
} ht_call;

typedef struct { /* why a call was refused */
  const char* kind; /* "TypeError", "ValueError", "RuntimeError": Python's names */
  char text[256];
} ht_error;

/* plan.c: the composition that serves m >= 1 rows. Never fails: outside the table it extends the nearest entry. */
void ht_plan_look_up(const ht_op* op, const ht_plan* plan, int64_t m, ht_composition* out);

/* check.c: validate the tensors of a call (bias may be NULL); 0, or -1 with *error filled. */
int ht_check(const ht_op* op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias, ht_call* call,
             ht_error* error);

/* run.c: compute the call; 0, or -1 when a micro-kernel refused its arguments. Allocates nothing. */
int ht_run(const ht_op* op, const ht_composition* composition, const ht_call* call, int threads);

/* pool.c: run body(arg, chunk) for every chunk, on the caller and at most threads-1 workers. The first len/threads
 * chunks belong to the caller, and so on; who is done takes from the others. Falls back to the caller alone when the
 * pool is busy or cannot start. Chunks must be independent. */
typedef void (*ht_pool_fn)(void (*body)(void* arg, int64_t chunk), void* arg, int64_t chunks, int threads);
void ht_pool_run(void (*body)(void* arg, int64_t chunk), void* arg, int64_t chunks, int threads);
int ht_pool_workers(void);          /* threads alive now, for tests */
/* GOMP_parallel or one like it: run fn(data) on `threads` threads at once, the caller among them. With a team the process's
 * OpenMP threads compute (NULL: our own pool again): two pools that spin on the same cores cost each other milliseconds. */
typedef void (*ht_team_fn)(void (*fn)(void* data), void* data, unsigned threads, unsigned flags);
void ht_pool_use_team(ht_team_fn team);
void ht_pool_inject(ht_pool_fn run); /* run parallel calls of every pack in the process on `run`; NULL: on our own pool */

#endif /* HT_H_ */
