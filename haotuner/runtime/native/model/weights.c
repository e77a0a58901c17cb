/* A model's weights, mapped from their file, which all processes share. */
#include <sys/mman.h>
#include <sys/stat.h>

#include "model/model.h"

int ht_model_weights(ht_model* m, int file, ht_error* error) {
  struct stat facts;
  if (m->weights_bytes == 0) return 0;
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size != m->weights_bytes)
    return ht_refuse(error, "RuntimeError", "the file of weights is not the one that the pack was made with; restore the pack or tune again");
  void* mapped = mmap(NULL, (size_t)m->weights_bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return ht_refuse(error, "RuntimeError", "the file of weights cannot be mapped");
  m->weights = mapped;
  m->weights_mapped = (size_t)m->weights_bytes;
  return 0;
}
