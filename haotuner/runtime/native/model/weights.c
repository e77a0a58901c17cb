/* A model's weights, mapped from their file, which all processes share, and compared with the checksums of its chunks. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "model/crc32.h"
#include "model/backend.h"

enum { READERS = 4 }; /* threads that read for a device, of which the model's `threads` says something else */

int ht_model_weights(ht_model* m, int file, int check, ht_error* error) {
  struct stat facts;
  if (m->weights_bytes == 0) return 0;
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size != m->weights_bytes)
    return ht_refuse(error, "RuntimeError", "the file of weights is not the one that the pack was made with; restore the pack or tune again");
  void* mapped = mmap(NULL, (size_t)m->weights_bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return ht_refuse(error, "RuntimeError", "the file of weights cannot be mapped");
  m->weights = mapped;
  m->weights_mapped = (size_t)m->weights_bytes;
  atomic_init(&m->damaged, -1);
  if (check && (m->compared = calloc((size_t)m->check_count, sizeof *m->compared)) == NULL)
    return ht_refuse(error, "RuntimeError", "no memory to open a model");
  return 0;
}

static void compare(ht_model* m, int64_t chunk) {
  if (atomic_exchange_explicit(&m->compared[chunk], 1, memory_order_relaxed)) return;
  const int64_t first = chunk * HT_MODEL_CHUNK, rest = m->weights_bytes - first;
  if (ht_crc32(m->weights + first, (size_t)(rest < HT_MODEL_CHUNK ? rest : HT_MODEL_CHUNK)) != (uint64_t)m->checks[chunk])
    atomic_store(&m->damaged, chunk);
}

void ht_model_compare(ht_model* m, int64_t first, int64_t end) {
  for (int64_t chunk = first / HT_MODEL_CHUNK; m->compared != NULL && chunk * HT_MODEL_CHUNK < end; ++chunk) compare(m, chunk);
}

static void compare_one(void* arg, int64_t chunk) { compare(arg, chunk); }

int ht_model_compared(ht_model* m, ht_error* error) {
  if (m->compared == NULL) return 0;
  ht_pool_run(compare_one, m, m->check_count, ht_where_type == kDLCPU ? m->threads : READERS);
  free(m->compared);
  m->compared = NULL;
  const long long damaged = atomic_load(&m->damaged);
  if (damaged < 0) return 0;
  return ht_refuse(error, "RuntimeError", "the weights of %.80s were changed or damaged: MiB %lld of their file has another checksum; restore the pack or tune again",
                   m->name, damaged);
}
