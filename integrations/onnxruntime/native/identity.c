/* Identity of a model: the SHA-256 of its file, which a pack's manifest names, and of those in which its tensors lie. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "provider.h"
#include "sha256.h"

#define DIGITS 64 /* of a hash */

/* A file's bytes, until unmap_file; of an empty one, which cannot be mapped, the data are one byte of no size. */
static OrtStatus* map_file(ort_table api, const char* path, unsigned char** data, size_t* size) {
  struct stat facts = {0};
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would be waited for */
  if (file < 0 || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size < 0) {
    int why = file < 0 ? errno : EINVAL;
    if (file >= 0) close(file);
    return provider_refuse(api, ORT_NO_SUCHFILE, "%s cannot be read (%s); its hash says which model of the pack it is", path, strerror(why));
  }
  static unsigned char nothing;
  void* mapped = facts.st_size == 0 ? &nothing : mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return provider_refuse(api, ORT_FAIL, "%s cannot be mapped (%s)", path, strerror(errno));
  *data = mapped;
  *size = (size_t)facts.st_size;
  return NULL;
}

static void unmap_file(unsigned char* data, size_t size) {
  if (size > 0) munmap(data, size);
}

static OrtStatus* file_sha256(ort_table api, const char* path, char out[DIGITS + 1]) {
  unsigned char* data;
  size_t size;
  OrtStatus* status = map_file(api, path, &data, &size);
  if (status != NULL) return status;
  ht_sha256(data, size, out);
  unmap_file(data, size);
  return NULL;
}

/* The hash of a file beside the model. */
static OrtStatus* external_sha256(ort_table api, const char* model, const char* name, char out[DIGITS + 1]) {
  char* path = NULL;
  const char* slash = strrchr(model, '/');
  if (name[0] == '/' || strcmp(name, "..") == 0 || strncmp(name, "../", 3) == 0 || strstr(name, "/../") != NULL)
    return provider_refuse(api, ORT_INVALID_ARGUMENT, "%s has tensors in %s; only files beside the model are read", model, name);
  if (asprintf(&path, "%.*s%s", slash == NULL ? 0 : (int)(slash - model + 1), model, name) < 0) return provider_refuse(api, ORT_FAIL, "no memory for a path");
  OrtStatus* status = file_sha256(api, path, out);
  free(path);
  return status;
}

/* Of a model with files beside it: the hash of all files' hex digits, the model's first. */
static OrtStatus* with_files(ort_table api, const char* path, const external_files* files, char sha256[DIGITS + 1]) {
  char* digests = malloc(DIGITS * ((size_t)files->count + 1) + 1);
  if (digests == NULL) return provider_refuse(api, ORT_FAIL, "no memory for the hashes of %d files", files->count);
  memcpy(digests, sha256, DIGITS + 1);
  OrtStatus* status = NULL;
  for (int i = 0; status == NULL && i < files->count; ++i) status = external_sha256(api, path, files->names[i], digests + DIGITS * (i + 1));
  if (status == NULL) ht_sha256((const unsigned char*)digests, DIGITS * ((size_t)files->count + 1), sha256);
  free(digests);
  return status;
}

OrtStatus* model_sha256(ort_table api, const char* path, char out[DIGITS + 1]) {
  unsigned char* data;
  size_t size;
  external_files files;
  OrtStatus* status = map_file(api, path, &data, &size);
  if (status != NULL) return status;
  ht_sha256(data, size, out);
  const char* wrong = external_files_read(data, size, &files);
  unmap_file(data, size);
  if (wrong != NULL) status = provider_refuse(api, ORT_INVALID_ARGUMENT, "%s: %s", path, wrong);
  else if (files.count > 0) status = with_files(api, path, &files, out);
  external_files_clear(&files);
  return status;
}
