/* Bounds of a caller's tensor in the address space. Used by packs and by the C library that opens them.
 * A process has the lower half of it: x86-64 leaves the upper half to the kernel. */
#ifndef HT_ADDRESSABLE_H_
#define HT_ADDRESSABLE_H_

#include <dlpack/dlpack.h>
#include <stdint.h>

#define HT_LAST_ADDRESS ((uintptr_t)INTPTR_MAX)

/* Whether every element of a tensor has an address that a process may have: no sum of its data, byte offset, strides (NULL: contiguous)
 * and extents wraps. Its rank was checked. A tensor without data or without elements has no address. */
static inline int ht_addressable(const DLTensor* t) {
  const __int128 most = HT_LAST_ADDRESS, size = (t->dtype.bits + 7) / 8;
  __int128 low = (__int128)(uintptr_t)t->data + t->byte_offset, high = low + size, run = 1;
  if (t->data == NULL) return 1;
  for (int32_t i = 0; i < t->ndim; ++i)
    if (t->shape[i] <= 0) return 1;
  for (int32_t i = t->ndim - 1; i >= 0; --i) {
    const __int128 span = (t->shape[i] - 1) * (t->strides == NULL ? run : (__int128)t->strides[i]); /* of 63 and 64 bits */
    if (span > most || span < -most) return 0;
    low += span < 0 ? span * size : 0;
    high += span > 0 ? span * size : 0;
    if (low < 0 || high > most) return 0;
    if (t->strides == NULL) run *= t->shape[i]; /* fits, as `high` does */
  }
  return high <= most;
}

#define HT_NOT_ADDRESSABLE "%s: its data, byte offset, strides and extents reach beyond the address space; pass a tensor whose memory exists"

#endif /* HT_ADDRESSABLE_H_ */
