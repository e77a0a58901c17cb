// Kernels of the driver's contract suite: plain CUDA C++, for nvcc and for the emulator.
extern "C" __global__ void fill(float* y, int n, float value) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = value;
}
// y = x, after a while.
extern "C" __global__ void slow_copy(const float* x, float* y, int n, int rounds) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  float value = x[i], waste = value;
  for (int round = 0; round < rounds; round++) waste = waste * 0.999f + 0.5f;
  y[i] = waste == 12345.678f ? waste : value;
}
extern "C" __global__ void add_one(float* y, int n) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = y[i] + 1.0f;
}
// y[i] = sum of the block's first i + 1 thread numbers, through dynamic shared memory whose last word it touches.
extern "C" __global__ void through_shared(float* y, int words) {
  extern __shared__ __align__(16) float room[];
  room[threadIdx.x] = (float)threadIdx.x;
  if (threadIdx.x == 0) room[words - 1] = 0.0f;
  __syncthreads();
  float sum = 0.0f;
  for (int j = 0; j <= (int)threadIdx.x; j++) sum += room[j];
  y[threadIdx.x] = sum;
}
extern "C" __global__ void __launch_bounds__(64) bounded(float* y) { y[threadIdx.x] = 1.0f; }
extern "C" __global__ void misaligned(char* y) { *(float4*)(y + 4) = make_float4(1.0f, 2.0f, 3.0f, 4.0f); }
