/* SHA-256 (FIPS 180-4). */
#ifndef HT_SHA256_H_
#define HT_SHA256_H_

#include <stddef.h>

/* Lower-case hex digits of the hash of `size` bytes, and a NUL. */
void ht_sha256(const unsigned char* data, size_t size, char out[65]);

#endif /* HT_SHA256_H_ */
