/* Packs and ops: open, find, count, close. A pack is kept by its owner and by every linear bound from it. */
#define _GNU_SOURCE
#include "open.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "gpu.h"
#include "ht_limits.h"

#define ATTEMPTS 100 /* a pack is opened in milliseconds; nobody replaces one so often */

int ht_abi_version(void) { return HT_ABI_VERSION; }

void ht_pack_release(ht_pack* pack) {
  if (atomic_fetch_sub_explicit(&pack->holders, 1, memory_order_acq_rel) != 1) return;
  ht_arena_clear(&pack->arena);
  ht_bytecodes_clear(&pack->bytecodes);
  if (pack->device < 0) dlclose(pack->library); /* graphs may replay a device's code: it stays */
  free(pack);
}

/* Have the code loaded on the device, so that no call has to. */
static ht_status load(const ht_door* door, const ht_gpu* gpu, const char* path, ht_error* error) {
  char text[sizeof error->text];
  const char* kind = NULL;
  if (door->version < 3) return ht_refuse(error, HT_PACK_MISMATCH, "%s was packed before devices were served; tune again", path);
  if (door->open(gpu->ordinal, &kind, text, sizeof text) == 0) return HT_OK;
  return ht_refuse(error, HT_PACK_MISMATCH, "%s: %s", path, text);
}

static ht_status connect(ht_pack** out, void* library, int threads, const ht_gpu* gpu, const char* path, ht_error* error) {
  const ht_door* (*enter)(void);
  *(void**)&enter = dlsym(library, HT_DOOR_SYMBOL); /* POSIX's own way to turn an object pointer into a function's */
  const ht_door* door = enter == NULL ? NULL : enter();
  if (door == NULL || door->version < HT_DOOR_OLDEST || door->version > HT_DOOR_VERSION)
    return ht_refuse(error, HT_PACK_MISMATCH, "%s speaks door version %d, this library %d; tune again with this haotuner", path,
                     door == NULL ? 0 : (int)door->version, HT_DOOR_VERSION);
  if (gpu != NULL && load(door, gpu, path, error) != HT_OK) return HT_PACK_MISMATCH;
  ht_pack* pack = calloc(1, sizeof *pack + (size_t)door->op_count * sizeof(ht_op));
  if (pack == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory to open %s", path);
  pack->door = door;
  pack->library = library;
  pack->threads = threads;
  pack->device = gpu == NULL ? -1 : gpu->ordinal;
  atomic_init(&pack->holders, 1);
  atomic_init(&pack->arena.rest, NULL);
  for (int i = 0; i < door->op_count; ++i) {
    pack->ops[i].pack = pack;
    pack->ops[i].index = i;
    door->describe(i, &pack->ops[i].facts); /* of an older pack without the members that came since: dense */
    if (door->version < 2) pack->ops[i].facts.kind = "dense";
  }
  *out = pack;
  return HT_OK;
}

/* One attempt; *moved: another pack took the place of the one that was being read. */
static ht_status open_once(const char* path, int threads, const ht_gpu* gpu, ht_pack** out, int* moved, ht_error* error) {
  *moved = 0;
  int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return ht_refuse(error, HT_PACK_INVALID, "%s: no such pack (%s)", path, strerror(errno));
  ht_checked checked = {.planned = 1};
  struct stat here, there;
  void* library = NULL;
  ht_status status = ht_files_check(folder, path, gpu, &checked, error);
  if (status == HT_OK && (library = dlopen(checked.library, RTLD_NOW | RTLD_LOCAL)) == NULL)
    status = ht_refuse(error, HT_PACK_INVALID, "%s cannot be loaded: %s", checked.library, dlerror());
  if (status == HT_OK && (stat(checked.library, &there) != 0 || there.st_dev != checked.device || there.st_ino != checked.inode))
    status = ht_refuse(error, HT_PACK_INVALID, "%s was exchanged while it was loaded; open the pack again", checked.library);
  if (status == HT_OK) status = connect(out, library, threads, gpu, checked.library, error);
  if (status == HT_OK) (*out)->planned = checked.planned, (*out)->bytecodes = checked.bytecodes;
  else ht_bytecodes_clear(&checked.bytecodes);
  if (status != HT_OK) {
    if (library != NULL) dlclose(library);
    *moved = fstat(folder, &here) == 0 && (stat(path, &there) != 0 || here.st_dev != there.st_dev || here.st_ino != there.st_ino);
  }
  close(folder);
  return status;
}

static ht_status open_steadily(const char* path, int threads, const ht_gpu* gpu, ht_pack** out, ht_error* error) {
  if (path == NULL) return ht_refuse(error, HT_PACK_INVALID, "path is NULL; name the directory that haotuner tune wrote");
  int moved = 1;
  ht_status status = HT_PACK_INVALID;
  for (int attempt = 0; attempt < ATTEMPTS && moved; ++attempt) status = open_once(path, threads, gpu, out, &moved, error);
  return status;
}

ht_status ht_pack_open(const char* path, int threads, ht_pack** out, ht_error* error) {
  if (out == NULL) return ht_refuse(error, HT_BAD_VALUE, "out is NULL; pass where to put the pack");
  *out = NULL;
  if (path != NULL && (threads < 1 || threads > HT_MAX_THREADS))
    return ht_refuse(error, HT_BAD_VALUE, "threads=%d is not in 1..%d", threads, HT_MAX_THREADS);
  return open_steadily(path, threads, NULL, out, error);
}

ht_status ht_pack_open_on(const char* path, int device, ht_pack** out, ht_error* error) {
  ht_gpu gpu;
  if (out == NULL) return ht_refuse(error, HT_BAD_VALUE, "out is NULL; pass where to put the pack");
  *out = NULL;
  ht_status status = ht_gpu_find(device, &gpu, error);
  return status == HT_OK ? open_steadily(path, 1, &gpu, out, error) : status;
}

void ht_pack_close(ht_pack* pack) {
  if (pack == NULL) return;
  atomic_store_explicit(&pack->closed, 1, memory_order_release);
  ht_arena_clear(&pack->arena);
  ht_pack_release(pack);
}

int ht_op_count(const ht_pack* pack) { return pack == NULL ? 0 : pack->door->op_count; }

const char* ht_op_name(const ht_pack* pack, int index) {
  return pack == NULL || index < 0 || index >= pack->door->op_count ? NULL : pack->ops[index].facts.name;
}

ht_status ht_op_find(ht_pack* pack, const char* name, ht_op** out, ht_error* error) {
  if (pack == NULL || name == NULL || out == NULL) return ht_refuse(error, HT_BAD_VALUE, "pack, name or out is NULL");
  for (int i = 0; i < pack->door->op_count; ++i) {
    if (strcmp(pack->ops[i].facts.name, name) != 0) continue;
    *out = &pack->ops[i];
    return HT_OK;
  }
  *out = NULL;
  return ht_refuse(error, HT_BAD_VALUE, "the pack holds no op %.100s; ht_op_name lists what it holds", name);
}

ht_status ht_stats(const ht_op* op, ht_counts_t* out) {
  if (op == NULL || out == NULL) return HT_BAD_VALUE;
  int64_t counts[3];
  op->pack->door->counts(op->index, counts);
  *out = (ht_counts_t){counts[0], counts[1], counts[2]};
  return HT_OK;
}

ht_status ht_use_pool(ht_pack* pack, ht_parallel_fn run) {
  if (pack == NULL) return HT_BAD_VALUE;
  pack->door->inject(run);
  return HT_OK;
}
