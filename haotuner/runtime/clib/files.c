#define _GNU_SOURCE
#include "files.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu.h"
#include "manifest.h"
#include "sha256.h"

#define MANIFEST_LIMIT ((size_t)16 << 20) /* as haotuner/pack/manifest.py */
#define LIBRARY_LIMIT ((size_t)1 << 30)

ht_status ht_refuse(ht_error* error, ht_status code, const char* format, ...) {
  if (error != NULL) {
    va_list args;
    va_start(args, format);
    error->code = code;
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
  }
  return code;
}

/* The whole of a regular file of a folder that is no link, at most `limit` bytes; the caller frees *data. `path` is for words. */
static ht_status read_file(int folder, const char* name, const char* path, size_t limit, unsigned char** data, size_t* size,
                           struct stat* found, ht_error* error) {
  int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat facts = {0};
  if (file < 0 || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    int why = file < 0 ? errno : EINVAL;
    if (file >= 0) close(file);
    return ht_refuse(error, HT_PACK_INVALID, "%s: cannot read it (%s); name the directory that haotuner tune wrote", path,
                     strerror(why));
  }
  ht_status status = HT_OK;
  if (found != NULL) *found = facts;
  *size = (size_t)facts.st_size;
  *data = NULL;
  if (facts.st_size < 0 || *size > limit)
    status = ht_refuse(error, HT_PACK_INVALID, "%s has %lld bytes; no pack has such a file", path, (long long)facts.st_size);
  else if ((*data = malloc(*size + 1)) == NULL)
    status = ht_refuse(error, HT_NO_MEMORY, "no memory for the %zu bytes of %s", *size, path);
  size_t done = 0;
  while (status == HT_OK && done < *size) {
    ssize_t got = read(file, *data + done, *size - done);
    if (got > 0) done += (size_t)got;
    else if (got == 0 || errno != EINTR) status = ht_refuse(error, HT_PACK_INVALID, "%s: reading stopped after %zu bytes", path, done);
  }
  close(file);
  if (status != HT_OK) {
    free(*data);
    *data = NULL;
  }
  return status;
}

void ht_bytecodes_clear(ht_bytecodes* all) {
  for (int i = 0; i < all->count; ++i) free(all->models[i].words);
  free(all->models);
  *all = (ht_bytecodes){0, NULL};
}

/* As haotuner/pack/library_file.py: a cut library would kill the process when it is mapped. */
static const char* elf_problem(const unsigned char* data, size_t size) {
  Elf64_Ehdr head;
  if (size < sizeof head) return "is too short for a library";
  memcpy(&head, data, sizeof head);
  if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
      head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_machine != EM_X86_64 || head.e_type != ET_DYN)
    return "is not a library for x86-64 Linux";
  if (head.e_phentsize != sizeof(Elf64_Phdr) || head.e_phoff > size || (size - head.e_phoff) / sizeof(Elf64_Phdr) < head.e_phnum)
    return "is cut";
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr segment;
    memcpy(&segment, data + head.e_phoff + (size_t)i * sizeof segment, sizeof segment);
    if (segment.p_type == PT_LOAD && (segment.p_offset > size || segment.p_filesz > size - segment.p_offset)) return "is cut";
  }
  return NULL;
}

static int host_has(const char* arch) {
  __builtin_cpu_init();
  int v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("popcnt");
  int v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
  int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (strcmp(arch, "x86-64") == 0) return 1;
  if (strcmp(arch, "x86-64-v2") == 0) return v2;
  if (strcmp(arch, "x86-64-v3") == 0) return v3;
  return strcmp(arch, "x86-64-v4") == 0 && v4;
}

/* A folder inside a pack's, or one inside that, none a link; -1 with *error filled. `path` is for words. */
static int enter(int folder, const char* name, const char* path, ht_error* error) {
  char first[HT_LEVEL_NAME];
  const char* slash = strchr(name, '/');
  snprintf(first, sizeof first, "%.*s", slash == NULL ? (int)strlen(name) : (int)(slash - name), name);
  int inner = openat(folder, first, O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
  if (inner >= 0 && slash != NULL) {
    int outer = inner;
    inner = openat(outer, slash + 1, O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
    close(outer);
  }
  if (inner < 0) ht_refuse(error, HT_PACK_INVALID, "%s is no directory of its own; copy the pack with its contents", path);
  return inner;
}

/* The manifest is the one that the pack was published with: manifest.sha256 holds its hash, but in packs of schema 1. */
static const char* seal_problem(int folder, int schema, const char* digest) {
  unsigned char* data = NULL;
  size_t size = 0;
  struct stat facts;
  if (fstatat(folder, "manifest.sha256", &facts, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
    return schema == 1 ? NULL : "manifest.sha256 is missing, which holds its hash";
  ht_status status = read_file(folder, "manifest.sha256", "", 100, &data, &size, NULL, NULL);
  int same = status == HT_OK && size == 65 && data[64] == '\n' && memcmp(data, digest, 64) == 0;
  free(data);
  return same ? NULL : "its sha256 is not the one in manifest.sha256; the manifest was changed";
}

/* Read and parse the manifest of a folder, whose hash must be `sha256` unless that is NULL. */
static ht_status read_manifest(int folder, const char* path, const char* sha256, ht_manifest* out, ht_error* error) {
  char name[PATH_MAX + 64], digest[65];
  unsigned char* data;
  size_t size;
  snprintf(name, sizeof name, "%s/manifest.json", path);
  ht_status status = read_file(folder, "manifest.json", name, MANIFEST_LIMIT, &data, &size, NULL, error);
  if (status != HT_OK) return status;
  const char* wrong = ht_manifest_read((const char*)data, size, out);
  ht_sha256(data, size, digest);
  free(data);
  if (sha256 != NULL && strcmp(digest, sha256) != 0) wrong = "not the one that the pack's own manifest names (sha256)";
  if (wrong == NULL) wrong = seal_problem(folder, out->schema, digest);
  if (wrong != NULL) return ht_refuse(error, HT_PACK_INVALID, "%s: %s; restore the pack or tune again", name, wrong);
  return HT_OK;
}

/* Of a pack with several levels: the widest that this CPU has, or the narrowest, which is refused later; -1: a plain pack. */
static int level_of(const ht_manifest* manifest) {
  int level = -1;
  for (int i = 0; i < HT_LEVELS; ++i)
    if (manifest->levels[i][0] != 0 && (level < 0 || host_has(ht_levels[i]))) level = i;
  return level;
}

/* Of a plain pack's folder: the library is the one that the manifest names, whole, and for this CPU. */
static ht_status check_library(int folder, const char* path, const ht_manifest* manifest, const ht_gpu* gpu, ht_checked* out,
                               ht_error* error) {
  char name[PATH_MAX + 64], digest[65];
  unsigned char* data;
  size_t size;
  struct stat facts;
  snprintf(name, sizeof name, "%s/lib", path);
  int lib = enter(folder, "lib", name, error);
  if (lib < 0) return HT_PACK_INVALID;
  if (snprintf(out->library, sizeof out->library, "%s/%s", path, manifest->library) >= (int)sizeof out->library) {
    close(lib);
    return ht_refuse(error, HT_PACK_INVALID, "%s: its path is too long", path);
  }
  ht_status status = read_file(lib, manifest->library + strlen("lib/"), out->library, LIBRARY_LIMIT, &data, &size, &facts, error);
  close(lib);
  if (status != HT_OK) return status;
  out->device = facts.st_dev;
  out->inode = facts.st_ino;
  ht_sha256(data, size, digest);
  const char* wrong = elf_problem(data, size);
  free(data);
  if (strcmp(digest, manifest->sha256) != 0)
    return ht_refuse(error, HT_PACK_INVALID, "%s: its sha256 is %.16s..., the manifest says %.16s...; restore the pack",
                     out->library, digest, manifest->sha256);
  if (wrong != NULL) return ht_refuse(error, HT_PACK_MISMATCH, "%s %s; tune on this kind of host", out->library, wrong);
  if (gpu != NULL) {
    out->planned = ht_gpu_distance(gpu, manifest) <= HT_GPU_NEAR;
    if (ht_gpu_runs(gpu, manifest->arch)) return ht_gpu_takes(gpu, manifest, path, error);
    return ht_refuse(error, HT_PACK_MISMATCH, "%s holds code for %s; cuda:%d has compute capability %d.%d: tune for this device", path,
                     manifest->arch, gpu->ordinal, gpu->major, gpu->minor);
  }
  if (strncmp(manifest->arch, "sm_", 3) == 0)
    return ht_refuse(error, HT_PACK_MISMATCH, "%s holds code for %s devices and none for CPUs: open it with ht_pack_open_on", path,
                     manifest->arch);
  if (!host_has(manifest->arch))
    return ht_refuse(error, HT_PACK_MISMATCH, "%s was built for %s, which this CPU is not; tune here or for a narrower one", path,
                     manifest->arch);
  return HT_OK;
}

/* The schedules of a plain pack's models: the files that its manifest names. */
static ht_status read_bytecodes(int folder, const char* path, const ht_manifest* manifest, ht_bytecodes* out, ht_error* error) {
  char name[PATH_MAX + HT_LEVEL_NAME + HT_MODEL_NAME], file[HT_MODEL_NAME + 16], digest[65];
  if (manifest->model_count == 0) return HT_OK;
  snprintf(name, sizeof name, "%s/models", path);
  int models = enter(folder, "models", name, error);
  if (models < 0) return HT_PACK_INVALID;
  ht_status status = HT_OK;
  if ((out->models = calloc((size_t)manifest->model_count, sizeof *out->models)) == NULL)
    status = ht_refuse(error, HT_NO_MEMORY, "no memory for the %d models of %s", manifest->model_count, path);
  for (int i = 0; status == HT_OK && i < manifest->model_count; ++i) {
    unsigned char* data;
    size_t size;
    snprintf(file, sizeof file, "%s.bytecode", manifest->models[i].name);
    snprintf(name, sizeof name, "%s/models/%s", path, file);
    if ((status = read_file(models, file, name, MANIFEST_LIMIT, &data, &size, NULL, error)) != HT_OK) break;
    ht_bytecode* bytecode = &out->models[out->count++];
    *bytecode = (ht_bytecode){.words = (int64_t*)(void*)data, .count = (int64_t)(size / 8)};
    memcpy(bytecode->name, manifest->models[i].name, sizeof bytecode->name);
    memcpy(bytecode->source, manifest->models[i].source, sizeof bytecode->source);
    bytecode->is_subgraph = manifest->models[i].is_subgraph;
    ht_sha256(data, size, digest);
    if (strcmp(digest, manifest->models[i].sha256) != 0)
      status = ht_refuse(error, HT_PACK_INVALID, "%s: its sha256 is not the one in the manifest; restore the pack or tune again", name);
    else if (size % 8 != 0)
      status = ht_refuse(error, HT_PACK_INVALID, "%s is cut: it has %zu bytes, which are no whole words; restore the pack or tune again", name, size);
  }
  close(models);
  return status;
}

static ht_status check_plain(int folder, const char* path, const ht_manifest* manifest, const ht_gpu* gpu, ht_checked* out, ht_error* error) {
  ht_status status = check_library(folder, path, manifest, gpu, out, error);
  return status == HT_OK ? read_bytecodes(folder, path, manifest, &out->bytecodes, error) : status;
}

/* Of a pack with several levels: that of the nearest device whose code `gpu` runs; -1 with *error filled if there is none. */
static int placed_level(int folder, const char* path, const ht_manifest* manifest, const ht_gpu* gpu, ht_error* error) {
  ht_manifest inner;
  double nearest = 0;
  int best = -1, taken = 0;
  for (int i = 0; i < manifest->placed_count; ++i) {
    if (!ht_gpu_runs(gpu, manifest->placed[i].name)) continue;
    int level = enter(folder, manifest->placed[i].name, path, error);
    if (level < 0) return -1;
    ht_status status = read_manifest(level, path, manifest->placed[i].sha256, &inner, error);
    close(level);
    ht_manifest_clear(&inner);
    if (status != HT_OK) return -1;
    double away = ht_gpu_distance(gpu, &inner);
    int takes = ht_gpu_takes(gpu, &inner, path, NULL) == HT_OK; /* of levels that none takes, the nearest is refused later */
    if (takes < taken) continue;
    if (best < 0 || takes > taken || away < nearest || (away == nearest && strcmp(manifest->placed[i].name, manifest->placed[best].name) < 0)) {
      nearest = away;
      best = i;
      taken = takes;
    }
  }
  if (best < 0)
    ht_refuse(error, HT_PACK_MISMATCH, "%s holds no code for cuda:%d (compute capability %d.%d): tune for this device and merge the packs",
              path, gpu->ordinal, gpu->major, gpu->minor);
  return best;
}

/* As ht_files_check; the manifests that are read are to be cleared. */
static ht_status check_files(int folder, const char* path, const ht_gpu* gpu, ht_manifest* manifest, ht_manifest* of_level, ht_checked* out, ht_error* error) {
  char whole[PATH_MAX + HT_LEVEL_NAME], name[HT_LEVEL_NAME], built[HT_LEVEL_NAME + 80];
  if (realpath(path, whole) == NULL)
    return ht_refuse(error, HT_PACK_INVALID, "%s: no such pack (%s)", path, strerror(errno));
  ht_status status = read_manifest(folder, whole, NULL, manifest, error);
  if (status != HT_OK) return status;
  if (manifest->library[0] != 0) return check_plain(folder, whole, manifest, gpu, out, error);
  int level = gpu == NULL ? level_of(manifest) : placed_level(folder, whole, manifest, gpu, error);
  if (level < 0 && gpu != NULL) return error == NULL ? HT_PACK_MISMATCH : error->code;
  if (level < 0) return ht_refuse(error, HT_PACK_MISMATCH, "%s holds code for devices and none for CPUs: open it with ht_pack_open_on", whole);
  snprintf(name, sizeof name, "%s", gpu == NULL ? ht_levels[level] : manifest->placed[level].name);
  strcat(strcat(whole, "/"), name);
  int inner = enter(folder, name, whole, error);
  if (inner < 0) return HT_PACK_INVALID;
  status = read_manifest(inner, whole, gpu == NULL ? manifest->levels[level] : manifest->placed[level].sha256, of_level, error);
  snprintf(built, sizeof built, gpu == NULL ? "%s" : "%s/%s", of_level->arch, of_level->id);
  if (status == HT_OK && strcmp(built, name) != 0)
    status = ht_refuse(error, HT_PACK_INVALID, "%s was built for %s; restore the pack or merge again", whole, built);
  if (status == HT_OK) status = check_plain(inner, whole, of_level, gpu, out, error);
  close(inner);
  return status;
}

ht_status ht_files_check(int folder, const char* path, const ht_gpu* gpu, ht_checked* out, ht_error* error) {
  ht_manifest manifest = {0}, of_level = {0};
  ht_status status = check_files(folder, path, gpu, &manifest, &of_level, out, error);
  ht_manifest_clear(&manifest);
  ht_manifest_clear(&of_level);
  return status;
}
