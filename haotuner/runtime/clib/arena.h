/* Memory for packed weights, side by side on huge pages: see ../host_memory.py, which says what that is worth. */
#ifndef HT_ARENA_H_
#define HT_ARENA_H_

#include <stdatomic.h>
#include <stddef.h>

typedef struct ht_chunk ht_chunk; /* freed with the last that holds it */

typedef struct {
  _Atomic(ht_chunk*) rest; /* the chunk with room left; taken out while in use, so two threads at once get one each */
} ht_arena;

/* `bytes` aligned to 64, and the chunk they lie in, to be released instead of freed. NULL: no memory. */
float* ht_arena_take(ht_arena* arena, size_t bytes, ht_chunk** chunk);

void ht_chunk_release(ht_chunk* chunk); /* NULL is none */

void ht_arena_clear(ht_arena* arena); /* keep nothing for later; what was taken stays */

#endif /* HT_ARENA_H_ */
