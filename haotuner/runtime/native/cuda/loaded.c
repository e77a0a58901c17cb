/* See loaded.h. */
#include "loaded.h"

#include <sched.h>
#include <stdlib.h>

enum { FRESH = 0, BUSY = 1, READY = 2 };

static struct {
  atomic_int state;
  ht_cuda_loaded loaded;
} places[HT_CUDA_DEVICES];

static int check_device(const ht_cu* cu, const ht_cuda_device* device, ht_error* error) {
  const ht_cuda_code* code = &ht_cuda_pack_code;
  if (cu->version < code->driver)
    return ht_refuse(error, "RuntimeError", "the driver serves CUDA %d.%d, this pack's code wants %d.%d or later: update the driver",
                     cu->version / 1000, cu->version % 1000 / 10, (int)code->driver / 1000, (int)code->driver % 1000 / 10);
  if (device->major != code->major || (code->exact ? device->minor != code->minor : device->minor < code->minor))
    return ht_refuse(error, "RuntimeError", "cuda:%d has compute capability %d.%d, this pack's code is for %s: tune for this device",
                     device->ordinal, device->major, device->minor, code->arch);
  for (int i = 0; i < code->kernel_count; ++i)
    if (code->kernels[i].shared_bytes > device->shared_limit)
      return ht_refuse(error, "RuntimeError", "%.80s wants %d bytes of shared memory, cuda:%d has %d a block: tune for this device",
                       code->kernels[i].name, (int)code->kernels[i].shared_bytes, device->ordinal, device->shared_limit);
  return 0;
}

static int find_functions(CUmodule module, ht_cuda_loaded* out, ht_error* error) {
  const ht_cuda_code* code = &ht_cuda_pack_code;
  for (int i = 0; i < code->kernel_count; ++i)
    if (ht_cuda_function(module, code->kernels[i].name, code->kernels[i].shared_bytes, &out->functions[i], error) != 0) return -1;
  for (int i = 0; i < HT_CUDA_DTYPES; ++i)
    if ((code->reduces[i] != NULL && ht_cuda_function(module, code->reduces[i], 0, &out->reduces[i], error) != 0) ||
        (code->unfolds[i] != NULL && ht_cuda_function(module, code->unfolds[i], 0, &out->unfolds[i], error) != 0) ||
        (code->folds[i] != NULL && ht_cuda_function(module, code->folds[i], 0, &out->folds[i], error) != 0))
      return -1;
  return 0;
}

static int load_groups(const ht_cu* cu, ht_cuda_loaded* out, ht_error* error) {
  const ht_cuda_groups_code* code = ht_cuda_pack_code.groups;
  CUmodule module;
  if (code == NULL) return 0;
  out->groups = calloc((size_t)code->count + 1, sizeof *out->groups);
  if (out->groups == NULL) return ht_refuse(error, "RuntimeError", "no memory for the table of a model's kernels");
  if (ht_cuda_load_module(code->image, &module, error) != 0) return -1;
  for (int i = 0; i < code->count; ++i) {
    if (ht_cuda_function(module, code->groups[i].name, 0, &out->groups[i], error) == 0) continue;
    cu->ModuleUnload(module);
    return -1;
  }
  return 0;
}

static int load(int ordinal, ht_cuda_loaded* out, ht_error* error) {
  CUmodule module;
  ht_cuda_scope scope;
  if ((out->device = ht_cuda_open(ordinal, error)) == NULL) return -1;
  const ht_cu* cu = ht_cu_load(error); /* a device was opened, so it is there */
  if (check_device(cu, out->device, error) != 0) return -1;
  out->groups = NULL;
  out->functions = calloc((size_t)ht_cuda_pack_code.kernel_count, sizeof *out->functions);
  if (out->functions == NULL) return ht_refuse(error, "RuntimeError", "no memory for the table of kernels");
  int rc = ht_cuda_enter(out->device, &scope, error);
  if (rc == 0) {
    rc = ht_cuda_load_module(ht_cuda_pack_code.image, &module, error);
    if (rc == 0 && ((rc = find_functions(module, out, error)) != 0 || (rc = load_groups(cu, out, error)) != 0)) cu->ModuleUnload(module);
    ht_cuda_leave(&scope);
  }
  if (rc != 0) {
    free(out->functions);
    free(out->groups);
  }
  return rc;
}

const ht_cuda_loaded* ht_cuda_load(int ordinal, ht_error* error) {
  if (ht_cuda_open(ordinal, error) == NULL) return NULL; /* also: the process was forked since */
  for (;;) {
    int found = FRESH;
    if (atomic_compare_exchange_strong(&places[ordinal].state, &found, BUSY)) {
      int failed = load(ordinal, &places[ordinal].loaded, error) != 0;
      atomic_store_explicit(&places[ordinal].state, failed ? FRESH : READY, memory_order_release);
      return failed ? NULL : &places[ordinal].loaded;
    }
    if (found == READY) return &places[ordinal].loaded;
    sched_yield();
  }
}
