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
