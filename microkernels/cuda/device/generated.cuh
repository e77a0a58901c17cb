// What generated programs call.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HT_ASSUME(what) __builtin_assume(what)  // quotients of what is not negative are shifts
#else
#define HT_ASSUME(what)
#endif
__device__ __forceinline__ long long ht_floordiv(long long a, long long b) {
  long long q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
__device__ __forceinline__ long long ht_mod(long long a, long long b) { return a - ht_floordiv(a, b) * b; }
template <class T> __device__ __forceinline__ T ht_max(T a, T b) { return a > b || a != a ? a : b; }  // NaN in either
template <class T> __device__ __forceinline__ T ht_min(T a, T b) { return a < b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T ht_sign(T a) { return a != a ? a : T((a > 0) - (a < 0)); }
__device__ __forceinline__ long long ht_quotient(long long a, long long b) {  // of what is not negative; most fit 32 bits
  return a < b ? 0 : ((unsigned long long)a | (unsigned long long)b) >> 32 == 0 ? (long long)((unsigned)a / (unsigned)b) : a / b;
}
// How many elements are left of an axis, behind which an iteration has nothing to do: no iteration takes more than that.
__device__ __forceinline__ int ht_room(long long left) { return left < 1 << 30 ? (int)left : 1 << 30; }
// What an iteration moves, COUNT vectors of a group of threads, from `p` on. `even`: PITCH neighbours a thread, which are one access,
// at own, own + step, …; else neighbours of a thread lie `apart`, so that those of the group lie side by side. GUARD: elements from
// `room` on are not touched, and read as 0.
template <class T, int PITCH> struct alignas(PITCH * sizeof(T)) ht_near { T at[PITCH]; };
template <int PITCH, bool GUARD, class V, int COUNT, class T>
__device__ __forceinline__ void ht_take(V (&w)[COUNT], const T* __restrict__ p, bool even, int own, int apart, int step, int room) {
  if (PITCH > 1 && even) {
#pragma unroll
    for (int r = 0; r < COUNT / PITCH; ++r) {
      const int at = own + r * step;
      const bool all = !GUARD || at + PITCH <= room;
      ht_near<T, PITCH> got;
      if (all) got = *(const ht_near<T, PITCH>*)(p + at);
#pragma unroll
      for (int q = 0; q < PITCH; ++q) w[r * PITCH + q] = all ? V(got.at[q]) : V(0);
    }
    if (!GUARD || room % PITCH == 0) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int at = own + i / PITCH * step;
      if (at + PITCH > room && at + i % PITCH < room) w[i] = V(p[at + i % PITCH]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int at = own + i / PITCH * step + i % PITCH * apart;
      w[i] = !GUARD || at < room ? V(p[at]) : V(0);
    }
  }
}
template <int PITCH, bool GUARD, class V, int COUNT, class T>
__device__ __forceinline__ void ht_put(T* p, const V (&w)[COUNT], bool even, int own, int apart, int step, int room) {
  if (PITCH > 1 && even) {
#pragma unroll
    for (int r = 0; r < COUNT / PITCH; ++r) {
      const int at = own + r * step;
      ht_near<T, PITCH> given;
#pragma unroll
      for (int q = 0; q < PITCH; ++q) given.at[q] = T(w[r * PITCH + q]);
      if (!GUARD || at + PITCH <= room) *(ht_near<T, PITCH>*)(p + at) = given;
    }
    if (!GUARD || room % PITCH == 0) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int at = own + i / PITCH * step;
      if (at + PITCH > room && at + i % PITCH < room) p[at + i % PITCH] = T(w[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int at = own + i / PITCH * step + i % PITCH * apart;
      if (!GUARD || at < room) p[at] = T(w[i]);
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
