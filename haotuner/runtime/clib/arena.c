/* Chunks of huge pages that weights share; each is kept by the arena while it has room, and by every weight in it. */
#define _DEFAULT_SOURCE /* madvise */
#include "arena.h"

#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT 64 /* a cache line: vector loads of the packed weight never straddle two */
#define HUGE_PAGE ((size_t)2 << 20) /* of x86-64 */
/* Pages that nothing was written to take no memory; over 32 MiB with what aligning adds, glibc always gives back when freed. */
#define CHUNK ((size_t)32 << 20)

struct ht_chunk {
  atomic_int holders;
  size_t used, bytes;
  char* memory;
};

static ht_chunk* chunk_of(size_t bytes) {
  ht_chunk* chunk = malloc(sizeof *chunk);
  if (chunk == NULL) return NULL;
  size_t size = (bytes > CHUNK ? bytes + HUGE_PAGE - 1 : CHUNK) / HUGE_PAGE * HUGE_PAGE;
  *chunk = (ht_chunk){.used = 0, .bytes = size, .memory = aligned_alloc(HUGE_PAGE, size)};
  if (chunk->memory == NULL) {
    free(chunk);
    return NULL;
  }
  atomic_init(&chunk->holders, 1);
#ifdef MADV_HUGEPAGE
  (void)madvise(chunk->memory, size, MADV_HUGEPAGE); /* a kernel without them serves from small pages, slower */
#endif
  return chunk;
}

static size_t room(const ht_chunk* chunk) { return chunk == NULL ? 0 : chunk->bytes - chunk->used; }

/* The arena keeps the one with more room; the other goes with its last weight. */
static void keep(ht_arena* arena, ht_chunk* chunk) {
  ht_chunk* other = atomic_exchange_explicit(&arena->rest, NULL, memory_order_acq_rel);
  ht_chunk *more = room(other) > room(chunk) ? other : chunk, *less = more == other ? chunk : other;
  ht_chunk_release(less);
  ht_chunk_release(atomic_exchange_explicit(&arena->rest, more, memory_order_acq_rel)); /* another thread's, since */
}

float* ht_arena_take(ht_arena* arena, size_t bytes, ht_chunk** out) {
  size_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  ht_chunk* chunk = atomic_exchange_explicit(&arena->rest, NULL, memory_order_acq_rel);
  if (chunk != NULL && atomic_load_explicit(&chunk->holders, memory_order_acquire) == 1) chunk->used = 0; /* all weights are gone */
  if (room(chunk) < need) {
    ht_chunk* fresh = chunk_of(need);
    if (chunk != NULL) keep(arena, chunk);
    if (fresh == NULL) return NULL;
    chunk = fresh;
  }
  float* found = (float*)(chunk->memory + chunk->used);
  chunk->used += need;
  atomic_fetch_add_explicit(&chunk->holders, 1, memory_order_relaxed);
  *out = chunk;
  keep(arena, chunk);
  return found;
}

void ht_chunk_release(ht_chunk* chunk) {
  if (chunk == NULL || atomic_fetch_sub_explicit(&chunk->holders, 1, memory_order_acq_rel) != 1) return;
  free(chunk->memory);
  free(chunk);
}

void ht_arena_clear(ht_arena* arena) { ht_chunk_release(atomic_exchange_explicit(&arena->rest, NULL, memory_order_acq_rel)); }
