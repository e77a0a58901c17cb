/* CRC-32 as zlib computes it. */
#ifndef HT_MODEL_CRC32_H_
#define HT_MODEL_CRC32_H_

#include <stddef.h>
#include <stdint.h>

uint32_t ht_crc32(const void* data, size_t size);

#endif /* HT_MODEL_CRC32_H_ */
