// Plain kernels of the product's launch contract (haotuner/runtime/native/cuda/ht_cuda_args.h), quick to compile and to emulate.
typedef struct {
  const float *x, *w, *bias, *residual;
  float *y, *partial;
  int m, n, k, ldx, ldy, splits, y_type, ldw;
  const float *scale, *low, *high, *slope;
  unsigned long long after;
} ht_cuda_args;
struct __align__(64) map_t {
  unsigned long long opaque[16];
};

static __device__ __forceinline__ void dense(const ht_cuda_args& a, int rows, int columns) {
  int tiles = (a.n + columns - 1) / columns;
  int share = (a.k + a.splits - 1) / a.splits, first = (int)blockIdx.y * share;
  int last = first + share < a.k ? first + share : a.k;
  for (int e = (int)threadIdx.x; e < rows * columns; e += (int)blockDim.x) {
    int row = (int)blockIdx.x / tiles * rows + e / columns, column = (int)blockIdx.x % tiles * columns + e % columns;
    if (row >= a.m || column >= a.n) continue;
    float sum = 0.0f;
    for (int i = first; i < last; i++) sum += a.x[(long long)row * a.ldx + i] * a.w[(long long)column * a.k + i];
    if (a.splits > 1)
      a.partial[((long long)blockIdx.y * a.m + row) * a.n + column] = sum;
    else
      a.y[(long long)row * a.ldy + column] = sum;
  }
}
extern "C" __global__ void __launch_bounds__(128) dense_bm16_bn16(ht_cuda_args a) { dense(a, 16, 16); }
extern "C" __global__ void __launch_bounds__(128) dense_bm64_bn32(ht_cuda_args a) {
  extern __shared__ __align__(16) float room[];  // as much as the launch says; its first word tells that it is there
  if (threadIdx.x == 0) room[0] = 0.0f;
  dense(a, 64, 32);
}
extern "C" __global__ void __launch_bounds__(128) dense_by_maps(ht_cuda_args a, const __grid_constant__ map_t x_map, const __grid_constant__ map_t w_map) {
  if (a.ldw == 1) a.y[0] = (float)(x_map.opaque[0] + w_map.opaque[0]);  // so that both are parameters
  dense(a, 16, 16);
}
extern "C" __global__ void haotuner_reduce_fp32(ht_cuda_args a) {
  for (int e = (int)(blockIdx.x * blockDim.x + threadIdx.x); e < a.m * a.n; e += (int)(gridDim.x * blockDim.x)) {
    float sum = 0.0f;
    for (int s = 0; s < a.splits; s++) sum += a.partial[(long long)s * a.m * a.n + e];
    a.y[(long long)(e / a.n) * a.ldy + e % a.n] = sum;
  }
}
extern "C" __global__ void never_ends(volatile int* flag) {
  if (threadIdx.x == 0) return;
  while (*flag == 0) __syncthreads();
}
