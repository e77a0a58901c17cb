#include "model/host_ops.h"

#include <math.h>
#include <string.h>

#include "model/bytecode.h"

#define AXES 16
#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 over the golden ratio: steps of the counter */

static int64_t count_of(const DLTensor* t) {
  int64_t count = 1;
  for (int a = 0; a < t->ndim; ++a) count *= t->shape[a];
  return count;
}

static int is_zero(const DLTensor* t, int64_t place) {
  int size = t->dtype.bits / 8;
  unsigned char raw[8] = {0};
  memcpy(raw, (const char*)t->data + place * size, (size_t)size);
  if (t->dtype.code == kDLFloat || t->dtype.code == kDLBfloat) raw[size - 1] &= 0x7f; /* -0 is 0; little-endian, as x86-64 is */
  uint64_t bits;
  memcpy(&bits, raw, sizeof bits);
  return bits == 0;
}

int64_t ht_between_nonzero(const DLTensor* of, int64_t* out) {
  int64_t count = count_of(of), found = 0, all = 0, at[AXES] = {0};
  int axes = of->ndim == 0 ? 1 : of->ndim;
  for (int64_t i = 0; out != NULL && i < count; ++i) all += !is_zero(of, i);
  for (int64_t i = 0; i < count; ++i) {
    if (!is_zero(of, i)) {
      for (int a = 0; out != NULL && a < axes; ++a) out[a * all + found] = at[a];
      ++found;
    }
    for (int a = of->ndim - 1; a >= 0 && ++at[a] == of->shape[a]; --a) at[a] = 0;
  }
  return found;
}

int ht_between_element(const DLTensor* of, int64_t place, int64_t* out) {
  if (place < 0 || place >= count_of(of)) return -1;
  const char* from = (const char*)of->data + place * (of->dtype.bits / 8);
  int sign = of->dtype.code == kDLInt;
#define READ(kind, name) { kind name; memcpy(&name, from, sizeof name); *out = (int64_t)name; }
  switch (of->dtype.bits) {
    case 8: if (sign) READ(int8_t, v) else READ(uint8_t, v) break;
    case 16: if (sign) READ(int16_t, v) else READ(uint16_t, v) break;
    case 32: if (sign) READ(int32_t, v) else READ(uint32_t, v) break;
    default:
      READ(int64_t, v)
      if (!sign && *out < 0) *out = INT64_MAX;
  }
#undef READ
  return 0;
}

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014, figure 14). */
static uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* In [0, 1): the counter's 53 highest bits. */
static double part(uint64_t stream, uint64_t counter) { return (double)(mixed(stream + (counter + 1) * GOLDEN) >> 11) * 0x1p-53; }

void ht_between_random(const DLTensor* out, const int64_t* law, uint64_t seed) {
  double low, high;
  memcpy(&low, &law[4], sizeof low);
  memcpy(&high, &law[5], sizeof high);
  if (law[2]) seed = (uint64_t)law[3];
  uint64_t stream = mixed(mixed(seed + GOLDEN) + (uint64_t)law[1]);
  int64_t count = count_of(out);
  for (int64_t i = 0; i < count; ++i) {
    double first = part(stream, 2 * (uint64_t)i), found;
    if (law[0] == LAW_NORMAL) { /* Box and Muller, 1958 */
      double radius = sqrt(-2.0 * log(1.0 - first));
      found = low + high * (radius * cos(6.283185307179586 * part(stream, 2 * (uint64_t)i + 1)));
    } else {
      found = low + (high - low) * first;
    }
    if (out->dtype.bits == 32) ((float*)out->data)[i] = (float)found;
    else ((double*)out->data)[i] = found;
  }
}
