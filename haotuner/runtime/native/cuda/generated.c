/* See generated.h. */
#include "generated.h"

enum {
  MOST_THREADS = 256,
  WARP = 32,
  ROUNDS = 32,     /* blocks of a multiprocessor: each goes on where they are fewer than the groups' shares */
  RESIDENT = 2048 /* threads of a multiprocessor */
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t elements_of(const int64_t* shape, int32_t rank) {
  int64_t elements = 1;
  for (int a = 0; a < rank; ++a) elements *= shape[a];
  return elements;
}

/* Groups of threads that have something of their own: a point of the axes that are not along the lanes, in pieces along them where
 * nothing is folded along them. */
static int64_t groups_of(const ht_cuda_generated_kernel* kernel, const int64_t* shape, int32_t rank, int whole_rows) {
  int64_t along = 1, rows = 1;
  for (int a = 0; a < rank; ++a) {
    if (a == kernel->lane_axis) along = shape[a];
    else rows *= a == kernel->lane_axis - 1 ? ceil_div(shape[a], kernel->rows) : shape[a];
  }
  const int64_t steps = whole_rows ? 1 : ceil_div(along, (int64_t)kernel->lanes * kernel->vectors);
  return rows > 0 ? rows * (steps > 0 ? steps : 1) : 1; /* what is written beside an output of no element may have some */
}

int64_t ht_cuda_generated_parts(const ht_cuda_generated_kernel* kernel, const ht_generated_args* args, const int64_t* shape, int32_t rank, int32_t units) {
  if (kernel->parts < 2) return 1;
  const int64_t elements = elements_of(shape, rank), tiles = ceil_div(args->sizes[kernel->dimension], kernel->step);
  int64_t parts = kernel->parts < tiles ? kernel->parts : tiles;
  if (elements == 0 || parts < 2) return 1;
  const int64_t most = HT_GENERATED_PARTIAL / ht_cuda_generated_floats(kernel, shape, rank, 1);
  const int64_t spare = (int64_t)units * RESIDENT / (groups_of(kernel, shape, rank, kernel->stages > 0) * kernel->lanes);
  if (parts > most) parts = most;
  if (parts > spare) parts = spare;
  return parts < 2 ? 1 : parts;
}

int64_t ht_cuda_generated_floats(const ht_cuda_generated_kernel* kernel, const int64_t* shape, int32_t rank, int64_t parts) {
  const int64_t elements = elements_of(shape, rank);
  return parts * (kernel->record == 0 || elements == 0 ? elements : elements / shape[kernel->lane_axis] * kernel->record);
}

int ht_cuda_launch_generated(const ht_cuda_generated_kernel* kernel, CUfunction function, const ht_generated_args* given,
                             const int64_t* shape, int32_t rank, int32_t units, float* partial, CUstream stream, ht_error* error) {
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  const int64_t elements = elements_of(shape, rank);
  ht_generated_args args = *given;
  const int64_t parts = partial == NULL ? 1 : ht_cuda_generated_parts(kernel, given, shape, rank, units);
  args.partial = partial;
  args.parts = (int)parts;
  args.phase = parts > 1;
  const int64_t lanes = kernel->lanes, pieces = groups_of(kernel, shape, rank, 0); /* shares of the work, at most */
  const int whole = lanes > WARP || kernel->rows > 1; /* a group is a block */
  int64_t threads = whole ? lanes : MOST_THREADS;
  const int64_t least = whole ? lanes : WARP;
  while (threads > least && ceil_div(pieces * lanes, threads) * parts < units) threads /= 2; /* few groups: spread over the multiprocessors */
  int64_t blocks = ceil_div(pieces * lanes, threads);
  if (blocks > (int64_t)units * ROUNDS) blocks = (int64_t)units * ROUNDS;
  void* params[1] = {&args};
  CUresult result = cu->LaunchKernel(function, (unsigned)blocks, (unsigned)parts, 1, (unsigned)threads, 1, 1, (unsigned)kernel->shared, stream, params, NULL);
  while (result == CUDA_SUCCESS && parts > 1 && args.phase < kernel->stages) {
    ++args.phase;
    result = cu->LaunchKernel(function, (unsigned)blocks, (unsigned)parts, 1, (unsigned)threads, 1, 1, (unsigned)kernel->shared, stream, params, NULL);
  }
  if (result == CUDA_SUCCESS && parts > 1 && kernel->stages == 0) {
    args.phase = 2;
    threads = elements < least ? least : threads;
    blocks = ceil_div(elements, threads);
    if (blocks > (int64_t)units * ROUNDS) blocks = (int64_t)units * ROUNDS;
    result = cu->LaunchKernel(function, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, stream, params, NULL);
  }
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching a kernel");
}
