/* Preloaded into a process: counts what a library holds of memory, and refuses it some when told to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

enum { MOST = 4096 };

static char watched[256]; /* the end of a library's path; empty: nothing is counted */
static long asked, refused, held;
static void* pieces[MOST]; /* of those held, wherever they are given back: a last call of a function has no return address there */
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void lock(void) {
  while (atomic_flag_test_and_set(&busy)) continue;
}

static void unlock(void) { atomic_flag_clear(&busy); }

/* From now on what this library asks for is counted, and the nth of it is refused; 0: none is. */
void memory_watch(const char* library, long nth) {
  lock();
  strncpy(watched, library, sizeof watched - 1);
  asked = 0;
  refused = nth;
  unlock();
}

long memory_asked(void) { return asked; }
long memory_held(void) { return held; } /* what was given and not taken back */

/* The path of the library that holds an address, or NULL. dladdr walks all its symbols: it took nine tenths of such a test. */
static const char* library_of(void* address) {
#if __GLIBC_PREREQ(2, 35)
  struct dl_find_object found;
  return _dl_find_object(address, &found) == 0 ? found.dlfo_link_map->l_name : NULL;
#else
  Dl_info found;
  return dladdr(address, &found) != 0 ? found.dli_fname : NULL;
#endif
}

static int theirs(void* caller) {
  const char* path = watched[0] == 0 ? NULL : library_of(caller);
  if (path == NULL) return 0;
  const size_t size = strlen(path), end = strlen(watched);
  return size >= end && strcmp(path + size - end, watched) == 0;
}

/* Whether it is refused. */
static int denied(void) {
  lock();
  const int found = ++asked == refused;
  unlock();
  if (found) errno = ENOMEM;
  return found;
}

static void* kept(void* piece) {
  lock();
  if (piece != NULL && piece != MAP_FAILED && held < MOST) pieces[held++] = piece;
  unlock();
  return piece;
}

static void gone(const void* piece) {
  if (held == 0 || piece == NULL) return;
  lock();
  for (long i = 0; i < held; ++i)
    if (pieces[i] == piece) pieces[i--] = pieces[--held];
  unlock();
}

/* What a function answers: as it is to others, counted or refused to the library. */
#define GIVEN(NOTHING, MADE) (!theirs(__builtin_return_address(0)) ? (MADE) : denied() ? (NOTHING) : kept(MADE))

void* malloc(size_t bytes) { return GIVEN(NULL, __libc_malloc(bytes)); }
void* calloc(size_t count, size_t size) { return GIVEN(NULL, __libc_calloc(count, size)); }
void* aligned_alloc(size_t to, size_t bytes) { return GIVEN(NULL, __libc_memalign(to, bytes)); }

void free(void* at) {
  gone(at);
  __libc_free(at);
}

static void* mapped(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  return (void*)syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
}

void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  return GIVEN(MAP_FAILED, mapped(at, bytes, protection, flags, file, offset));
}

static void* moved(void* at, size_t old, size_t bytes, int flags, void* to) {
  void* found = (void*)syscall(SYS_mremap, at, old, bytes, flags, to);
  if (found != MAP_FAILED) gone(at);
  return found;
}

void* mremap(void* at, size_t old, size_t bytes, int flags, ...) {
  va_list more;
  va_start(more, flags);
  void* to = flags & MREMAP_FIXED ? va_arg(more, void*) : NULL;
  va_end(more);
  if (to != NULL) /* into a piece that is held */
    return theirs(__builtin_return_address(0)) && denied() ? MAP_FAILED : (void*)syscall(SYS_mremap, at, old, bytes, flags, to);
  return GIVEN(MAP_FAILED, moved(at, old, bytes, flags, to));
}

int munmap(void* at, size_t bytes) {
  gone(at);
  return (int)syscall(SYS_munmap, at, bytes);
}
