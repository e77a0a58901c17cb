/* Rooms of threads (scratchpad.h). No lock: a child may be forked while another thread would hold it. */
#define _GNU_SOURCE
#include "scratchpad.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KNOWN 1024 /* threads whose rooms are given back when the library is unmapped; of others only when they end */
#define LINE 64

typedef struct block { /* begins a mapping: a child of fork has it, which has nothing else of other threads */
  struct block* next;
  size_t bytes; /* of the mapping */
} block;

_Static_assert(sizeof(block) <= LINE, "a room begins behind it");

static _Thread_local struct {
  char* at[HT_ROOMS];
  block* first;
  int is_known;
} mine;

static _Atomic(block*) known[KNOWN]; /* the first of each thread */
static pthread_key_t key;
static int has_key, exiting;

static void unmap(block* one) {
  while (one != NULL) {
    block* next = one->next;
    munmap(one, one->bytes);
    one = next;
  }
}

static void thread_ends(void* first) {
  int own = !mine.is_known;
  for (int i = 0; i < KNOWN && !own; ++i) {
    block* expected = first;
    own = atomic_compare_exchange_strong(&known[i], &expected, NULL);
  }
  memset(&mine, 0, sizeof mine);
  if (own) unmap(first); /* else `leave` does */
}

static void know(block* first) {
  mine.first = first;
  if (has_key) pthread_setspecific(key, first);
  for (int i = 0; i < KNOWN; ++i) {
    block* none = NULL;
    if (atomic_compare_exchange_strong(&known[i], &none, first)) {
      mine.is_known = 1;
      return;
    }
  }
}

__attribute__((noinline)) static char* take(ht_room_of which, size_t bytes) {
  block* one = mmap(NULL, bytes + LINE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (one == MAP_FAILED) abort(); /* as the dynamic linker does for thread-local memory */
  *one = (block){NULL, bytes + LINE};
  if (mine.first == NULL) {
    know(one);
  } else {
    one->next = mine.first->next;
    mine.first->next = one;
  }
  return mine.at[which] = (char*)one + LINE;
}

void* ht_room(ht_room_of which, size_t bytes) {
  char* found = mine.at[which];
  return found != NULL ? found : take(which, bytes);
}

/* Before `leave` where the process exits, and behind it where the library is unmapped. */
static void exits(void* unused) {
  (void)unused;
  exiting = 1;
}

extern int __cxa_atexit(void (*function)(void*), void* argument, void* library); /* atexit, in words that ThreadSanitizer understands */
extern void* __dso_handle __attribute__((visibility("hidden")));

__attribute__((constructor)) static void enter(void) {
  has_key = pthread_key_create(&key, thread_ends) == 0;
  __cxa_atexit(exits, NULL, &__dso_handle);
}

__attribute__((destructor)) static void leave(void) {
  if (exiting) return; /* calls of other threads may still run */
  if (has_key) pthread_key_delete(key);
  for (int i = 0; i < KNOWN; ++i) unmap(atomic_exchange(&known[i], NULL));
}
