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
