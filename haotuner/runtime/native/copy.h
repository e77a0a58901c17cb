/* Copies so short that a call of memcpy would take longer. */
#ifndef HT_COPY_H_
#define HT_COPY_H_

#include <stdint.h>
#include <string.h>

static inline void ht_copy_few(void* to, const void* from, int64_t bytes) {
  char* out = (char*)to;
  const char* in = (const char*)from;
  if (bytes >= 16) {
    for (int64_t i = 0; i < bytes - 16; i += 16) memcpy(out + i, in + i, 16);
    memcpy(out + bytes - 16, in + bytes - 16, 16); /* some of them again, rather than one by one */
  } else if (bytes >= 8) {
    memcpy(out, in, 8);
    memcpy(out + bytes - 8, in + bytes - 8, 8);
  } else if (bytes >= 4) {
    memcpy(out, in, 4);
    memcpy(out + bytes - 4, in + bytes - 4, 4);
  } else {
    for (int64_t i = 0; i < bytes; ++i) out[i] = in[i];
  }
}

#endif /* HT_COPY_H_ */
