/* What drive_doors.c and drive_bound.c share: the system refuses one thing of all that the C library asks it for. Link with --wrap of
 * what is wrapped here. */
#ifndef DOORS_H_
#define DOORS_H_

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/cu.h"
#include "c_api.h"
#include "files.h"
#include "gpu.h"
#include "ht_limits.h"
#include "open.h"

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)
#define REFUSED(call, status, words)                                                                     \
  do {                                                                                                   \
    ht_error error = {HT_OK, ""};                                                                        \
    ht_status found = (call);                                                                            \
    if (found != (status) || (found != HT_OK && (error.code != found || strstr(error.text, words) == NULL))) { \
      fprintf(stderr, "line %d: %s: %d %s\n", __LINE__, #call, (int)found, error.text);                  \
      exit(1);                                                                                           \
    }                                                                                                    \
  } while (0)

/* What the library asks the system for, and what is refused. */
static const char *hidden, *unopened;  /* a symbol; a part of a file's name */
static int starved, foreign, elsewhere, vanished; /* the next allocation; so many calls of stat tell of another file, one on another disk, or of none */
static const ht_door* (*other_door)(void);
static int spoiled; /* a library is read with one bit changed */
static int opens, loads, libraries; /* doors asked for; libraries of packs that were loaded, and that are held */
int __real_dlclose(void*);
ssize_t __real_read(int, void*, size_t);
void* __real_dlopen(const char*, int);
void* __real_dlsym(void*, const char*);
void* __real_calloc(size_t, size_t);
void* __real_aligned_alloc(size_t, size_t);
int __real_stat(const char*, struct stat*);
void* __wrap_dlopen(const char* name, int how) {
  if (unopened != NULL && strstr(name, unopened) != NULL) return __real_dlopen("/no/such/library", how);
  const int ours = strstr(name, "/lib/") != NULL;
  loads += ours, libraries += ours;
  return __real_dlopen(name, how);
}
int __wrap_dlclose(void* library) { return --libraries, __real_dlclose(library); }
void* __wrap_dlsym(void* library, const char* name) {
  if (hidden != NULL && strcmp(name, hidden) == 0) return NULL;
  if (strcmp(name, HT_DOOR_SYMBOL) == 0) {
    ++opens;
    if (other_door != NULL) return *(void**)&other_door;
  }
  return __real_dlsym(library, name);
}
void* __wrap_calloc(size_t count, size_t size) { return starved && starved-- == 1 ? NULL : __real_calloc(count, size); }
void* __wrap_aligned_alloc(size_t to, size_t size) { return starved && starved-- == 1 ? NULL : __real_aligned_alloc(to, size); }
ssize_t __wrap_read(int file, void* out, size_t most) {
  ssize_t got = __real_read(file, out, most);
  if (spoiled && got > 0 && memcmp(out, "\177ELF", 4) == 0) ((char*)out)[got - 1] ^= 1;
  return got;
}
int __wrap_stat(const char* path, struct stat* out) {
  if (vanished > 0 && vanished--) return -1;
  int rc = __real_stat(path, out);
  if (foreign > 0 && foreign--) ++out->st_ino;
  if (elsewhere > 0 && elsewhere--) ++out->st_dev;
  return rc;
}

static ht_cu cu;
static CUcontext context;
static void (*fail)(const char* name, long nth, const char* what);

__attribute__((unused)) static void* place(int64_t bytes) {
  CUdeviceptr found;
  CHECK(cu.CtxPushCurrent(context) == 0 && cu.MemAlloc(&found, (size_t)bytes) == 0 && cu.CtxPopCurrent(&context) == 0);
  return (void*)(size_t)found;
}

static void find_driver(void) {
  void* driver = __real_dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  *(void**)&fail = __real_dlsym(driver, "standin_fail");
  CHECK(fail != NULL);
#define FIND(field, symbol, parameters) *(void**)&cu.field = __real_dlsym(driver, #symbol);
  HT_CU_NEEDED(FIND)
  *(void**)&cu.Init = __real_dlsym(driver, "cuInit");
}

__attribute__((unused)) static void begin(void) {
  CUdevice device;
  CHECK(cu.Init(0) == 0 && cu.DeviceGet(&device, 0) == 0 && cu.DevicePrimaryCtxRetain(&context, device) == 0);
}

/* A door that a test changes. */
static ht_door mine;
static const ht_door* my_door(void) { return &mine; }

#endif /* DOORS_H_ */
