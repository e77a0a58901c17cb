/* The loops that read bandwidth is measured with. Needs -DVECTOR_BYTES=16|32|64. */
#include <stddef.h>

typedef long long ivec __attribute__((vector_size(VECTOR_BYTES), may_alias));

/* Bytes that each of several streams reads of a buffer; 1792 off the page grid, so that they do not meet in a cache set. */
static inline size_t stream_bytes(size_t bytes, int streams) { return ((bytes / (size_t)streams) & ~(size_t)4095) - 1792; }

/* Xor of the words of an aligned buffer, read as 1, 4 or 8 streams at once, with or without software prefetch. */
static inline __attribute__((always_inline)) long long read_as(const char *data, size_t bytes, int streams, int ahead) {
    size_t part = stream_bytes(bytes, streams);
    ivec sum[8] = {{0}};
    for (size_t at = 0; at < part; at += 256) {
#pragma GCC unroll 8
        for (int s = 0; s < streams; s++) {
            const char *block = data + (size_t)s * part + at;
#pragma GCC unroll 16
            for (int j = 0; j < 256; j += VECTOR_BYTES) {
                if (ahead && j % 64 == 0) __builtin_prefetch(block + j + ahead, 0, 0);
                sum[s] ^= *(const ivec *)(block + j);
            }
        }
    }
    long long all = 0;
    for (int s = 0; s < streams; s++)
        for (int l = 0; l < VECTOR_BYTES / 8; l++) all ^= sum[s][l];
    return all;
}

static const int read_streams[] = {1, 1, 4, 4, 8};
#define VARIANTS ((int)(sizeof read_streams / sizeof *read_streams))

static long long read_pass(const char *data, size_t bytes, int variant) {
    switch (variant) {
        case 0: return read_as(data, bytes, 1, 0);
        case 1: return read_as(data, bytes, 1, 1024);
        case 2: return read_as(data, bytes, 4, 0);
        case 3: return read_as(data, bytes, 4, 1024);
        default: return read_as(data, bytes, 8, 0);
    }
}
