/* SHA-256 as FIPS 180-4 section 6.2 writes it. The constants are its section 4.2.2 and 5.3.3: the first 32 bits of the
 * fractional parts of cube roots (square roots) of the first primes; here they are computed from the primes' roots by
 * integer bisection, which is shorter than a table and cannot have a typing error. */
#include "sha256.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef unsigned __int128 u128;

/* floor(frac(prime^(1/power)) * 2^32): the root of prime * 2^(32*power), found bit by bit, without its whole part. */
static uint32_t fraction(uint32_t prime, int power) {
  uint64_t root = 0;
  for (int bit = 36; bit >= 0; --bit) {
    uint64_t next = root | (uint64_t)1 << bit;
    u128 raised = (u128)next * next;
    if (power == 3) raised *= next; /* next < 2^37: below 2^111 */
    if (raised <= (u128)prime << (32 * power)) root = next;
  }
  return (uint32_t)root;
}

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void block(uint32_t state[8], const uint32_t k[64], const unsigned char* data) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t)
    w[t] = (uint32_t)data[4 * t] << 24 | (uint32_t)data[4 * t + 1] << 16 | (uint32_t)data[4 * t + 2] << 8 | data[4 * t + 3];
  for (int t = 16; t < 64; ++t) {
    uint32_t s0 = turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3;
    uint32_t s1 = turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  uint32_t v[8];
  memcpy(v, state, sizeof v);
  for (int t = 0; t < 64; ++t) {
    uint32_t sum1 = turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25);
    uint32_t t1 = v[7] + sum1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[t] + w[t];
    uint32_t sum0 = turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22);
    uint32_t t2 = sum0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) state[i] += v[i];
}

void ht_sha256(const unsigned char* data, size_t size, char out[65]) {
  uint32_t k[64], state[8];
  uint32_t prime = 2;
  for (int found = 0; found < 64; ++prime) {
    int divided = 0;
    for (uint32_t d = 2; d * d <= prime; ++d) divided |= prime % d == 0;
    if (divided) continue;
    k[found] = fraction(prime, 3);
    if (found < 8) state[found] = fraction(prime, 2);
    ++found;
  }
  size_t whole = size / 64 * 64;
  for (size_t at = 0; at < whole; at += 64) block(state, k, data + at);
  unsigned char last[128] = {0};
  size_t left = size - whole, end = left < 56 ? 64 : 128;
  if (left > 0) memcpy(last, data + whole, left);
  last[left] = 0x80;
  for (int i = 0; i < 8; ++i) last[end - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> (8 * i));
  for (size_t at = 0; at < end; at += 64) block(state, k, last + at);
  for (int i = 0; i < 8; ++i) snprintf(out + 8 * i, 9, "%08x", (unsigned)state[i]);
}
