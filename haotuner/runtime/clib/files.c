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

/* The whole of a regular file that is no link, at most `limit` bytes; the caller frees *data. */
static ht_status read_file(const char* path, size_t limit, unsigned char** data, size_t* size, ht_error* error) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    int why = file < 0 ? errno : EINVAL;
    if (file >= 0) close(file);
    return ht_refuse(error, HT_PACK_INVALID, "%s: cannot read it (%s); name the directory that haotuner tune wrote", path,
                     strerror(why));
  }
  ht_status status = HT_OK;
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

/* As haotuner/runtime/elf.py: a cut library would kill the process when it is mapped. */
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

/* Read and parse <folder>/manifest.json, whose hash must be `sha256` unless that is NULL. */
static ht_status read_manifest(const char* folder, const char* sha256, ht_manifest* out, ht_error* error) {
  char name[PATH_MAX + 64], digest[65];
  unsigned char* data;
  size_t size;
  snprintf(name, sizeof name, "%s/manifest.json", folder);
  ht_status status = read_file(name, MANIFEST_LIMIT, &data, &size, error);
  if (status != HT_OK) return status;
  const char* wrong = ht_manifest_read((const char*)data, size, out);
  if (sha256 != NULL) ht_sha256(data, size, digest);
  free(data);
  if (sha256 != NULL && strcmp(digest, sha256) != 0) wrong = "not the one that the pack's own manifest names (sha256)";
  if (wrong != NULL) return ht_refuse(error, HT_PACK_INVALID, "%s: %s; restore the pack or tune again", name, wrong);
  return HT_OK;
}

/* Of a pack with several levels: go into the widest that this CPU has, or the narrowest, which is refused later. */
static ht_status enter_level(char* folder, size_t room, ht_manifest* manifest, ht_error* error) {
  int level = -1;
  for (int i = 0; i < HT_LEVELS; ++i)
    if (manifest->levels[i][0] != 0 && (level < 0 || host_has(ht_levels[i]))) level = i;
  if (level < 0) return HT_OK; /* a plain pack */
  char sha256[65];
  memcpy(sha256, manifest->levels[level], sizeof sha256);
  size_t used = strlen(folder);
  if (snprintf(folder + used, room - used, "/%s", ht_levels[level]) >= (int)(room - used))
    return ht_refuse(error, HT_PACK_INVALID, "%s: its path is too long", folder);
  struct stat facts;
  if (lstat(folder, &facts) != 0 || !S_ISDIR(facts.st_mode))
    return ht_refuse(error, HT_PACK_INVALID, "%s is no directory of its own; copy the pack with its contents", folder);
  ht_status status = read_manifest(folder, sha256, manifest, error);
  if (status == HT_OK && strcmp(manifest->arch, ht_levels[level]) != 0)
    return ht_refuse(error, HT_PACK_INVALID, "%s was built for %s; restore the pack or merge again", folder, manifest->arch);
  return status;
}

ht_status ht_files_check(const char* path, char* library, size_t room, ht_error* error) {
  char whole[PATH_MAX], name[PATH_MAX + 64];
  if (path == NULL || realpath(path, whole) == NULL)
    return ht_refuse(error, HT_PACK_INVALID, "%s: no such pack (%s)", path == NULL ? "NULL" : path, strerror(errno));
  ht_manifest manifest;
  ht_status status = read_manifest(whole, NULL, &manifest, error);
  if (status == HT_OK) status = enter_level(whole, sizeof whole, &manifest, error);
  if (status != HT_OK) return status;
  snprintf(name, sizeof name, "%s/lib", whole);
  struct stat folder;
  if (lstat(name, &folder) != 0 || !S_ISDIR(folder.st_mode))
    return ht_refuse(error, HT_PACK_INVALID, "%s is no directory of its own; copy the pack with its contents", name);
  if (snprintf(library, room, "%s/%s", whole, manifest.library) >= (int)room)
    return ht_refuse(error, HT_PACK_INVALID, "%s: its path is too long", whole);
  unsigned char* data;
  size_t size;
  status = read_file(library, LIBRARY_LIMIT, &data, &size, error);
  if (status != HT_OK) return status;
  char digest[65];
  ht_sha256(data, size, digest);
  const char* wrong = elf_problem(data, size);
  free(data);
  if (strcmp(digest, manifest.sha256) != 0)
    return ht_refuse(error, HT_PACK_INVALID, "%s: its sha256 is %.16s..., the manifest says %.16s...; restore the pack", library,
                     digest, manifest.sha256);
  if (wrong != NULL) return ht_refuse(error, HT_PACK_MISMATCH, "%s %s; tune on this kind of host", library, wrong);
  if (!host_has(manifest.arch))
    return ht_refuse(error, HT_PACK_MISMATCH, "%s was built for %s, which this CPU is not; tune here or for a narrower one",
                     whole, manifest.arch);
  return HT_OK;
}
