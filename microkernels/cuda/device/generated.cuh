// What generated programs call.
__device__ __forceinline__ long long ht_floordiv(long long a, long long b) {
  long long q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
__device__ __forceinline__ long long ht_mod(long long a, long long b) { return a - ht_floordiv(a, b) * b; }
template <class T> __device__ __forceinline__ T ht_max(T a, T b) { return a > b || a != a ? a : b; }  // NaN in either
template <class T> __device__ __forceinline__ T ht_min(T a, T b) { return a < b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T ht_sign(T a) { return a != a ? a : T((a > 0) - (a < 0)); }
__device__ __forceinline__ long long ht_quotient(long long a, long long b) {  // of what is not negative; most fit 32 bits
  return ((unsigned long long)a | (unsigned long long)b) >> 32 == 0 ? (long long)((unsigned)a / (unsigned)b) : a / b;
}
// What an iteration moves, COUNT vectors of a group of threads: PITCH neighbours a thread at first, first + step, … `p` is where the
// axis begins; GUARD: elements from `limit` on are not touched, and read as 0. Where neighbours lie on a boundary of their size
// (first and step are multiples of PITCH), they are one access.
template <class T, int PITCH> struct alignas(PITCH * sizeof(T)) ht_near { T at[PITCH]; };
template <int PITCH, class T> __device__ __forceinline__ bool ht_whole(const T* p, bool guard, long long limit) {
  return PITCH > 1 && (unsigned long long)p % (PITCH * sizeof(T)) == 0 && (!guard || limit % PITCH == 0);
}
template <int PITCH, bool GUARD, class V, int COUNT, class T>
__device__ __forceinline__ void ht_take(V (&w)[COUNT], const T* __restrict__ p, long long first, int step, long long limit) {
  if (ht_whole<PITCH>(p, GUARD, limit)) {
#pragma unroll
    for (int r = 0; r < COUNT / PITCH; ++r) {
      const long long at = first + r * step;
      ht_near<T, PITCH> got;
      if (!GUARD || at < limit) got = *(const ht_near<T, PITCH>*)(p + at);
#pragma unroll
      for (int q = 0; q < PITCH; ++q) w[r * PITCH + q] = !GUARD || at < limit ? V(got.at[q]) : V(0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const long long at = first + i / PITCH * step + i % PITCH;
      w[i] = !GUARD || at < limit ? V(p[at]) : V(0);
    }
  }
}
template <int PITCH, bool GUARD, class V, int COUNT, class T>
__device__ __forceinline__ void ht_put(T* p, const V (&w)[COUNT], long long first, int step, long long limit) {
  if (ht_whole<PITCH>(p, GUARD, limit)) {
#pragma unroll
    for (int r = 0; r < COUNT / PITCH; ++r) {
      const long long at = first + r * step;
      ht_near<T, PITCH> given;
#pragma unroll
      for (int q = 0; q < PITCH; ++q) given.at[q] = T(w[r * PITCH + q]);
      if (!GUARD || at < limit) *(ht_near<T, PITCH>*)(p + at) = given;
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const long long at = first + i / PITCH * step + i % PITCH;
      if (!GUARD || at < limit) p[at] = T(w[i]);
    }
  }
}
// Rows of the output from what up to 32 parts left of them: a warp a row, a lane a part while shares are found. place(row): where the
// row's columns go. No load waits for another: one part after the other took 10 microseconds for 32 of them (H200).
template <int COLUMNS, class T, class Place>
__device__ __forceinline__ void ht_join(const float* left, long long rows, int parts, Place place) {
  constexpr int LINE = (COLUMNS + 31) / 32 * 32;
  const int lane = threadIdx.x % 32;
  const long long apart = rows * (LINE + 2);
  for (long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += (long long)gridDim.x * blockDim.x / 32) {
    const float* const own = left + row * (LINE + 2);
    const float most = lane < parts ? own[lane * apart + LINE] : __uint_as_float(0xff800000u);
    const float total = lane < parts ? own[lane * apart + LINE + 1] : 0.0f;
    float top = most;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, other));
    float share = expf(most - (top == __uint_as_float(0xff800000u) ? 0.0f : top)), whole = total * share;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) whole += __shfl_xor_sync(0xffffffffu, whole, other);
    share /= whole;
    float sums[LINE / 32];
#pragma unroll
    for (int j = 0; j < LINE / 32; j++) sums[j] = 0.0f;
#pragma unroll 8
    for (int part = 0; part < parts; part++) {
      const float of = __shfl_sync(0xffffffffu, share, part);
#pragma unroll
      for (int j = 0; j < LINE / 32; j++) sums[j] = fmaf(own[part * apart + j * 32 + lane], of, sums[j]);
    }
    T* const to = place(row);
#pragma unroll
    for (int j = 0; j < LINE / 32; j++)
      if (j * 32 + lane < COLUMNS) to[j * 32 + lane] = T(sums[j]);
  }
}
