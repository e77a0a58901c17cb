/* See cuda_epilogue.h. */
#include "cuda_epilogue.h"

#include <string.h>

#include "cuda_dense.h"

static const char* const names[HT_CHANNELS] = {"bias", "scale", "low", "high", "slope"};

static int place_of(const char* name) {
  for (int i = 0; i < HT_CHANNELS; ++i)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}

static int bind_one(const ht_op* op, const char* name, int64_t groups, int64_t extent, const DLTensor* t, int device,
                    ht_cuda_channels* out, ht_error* error) {
  if (ht_cuda_check_tensor(op, name, t, device, error) != 0) return -1;
  const int lead = groups > 0;
  if (t->ndim == 1 + lead && t->shape[lead] == extent && (!lead || t->shape[0] == groups) && t->data != NULL && ht_contiguous(t)) {
    if (ht_check_addresses(name, t, error) != 0) return -1;
    out->values[place_of(name)] = ht_data(t);
    return 0;
  }
  if (groups > 0)
    return ht_refuse(error, "ValueError", "%s has rank %d and first extent %lld; expected a contiguous (%lld, %lld), a row for each group",
                     name, (int)t->ndim, (long long)t->shape[0], (long long)groups, (long long)extent);
  return ht_refuse(error, "ValueError", "%s has rank %d and extent %lld; expected one contiguous axis of %lld", name, (int)t->ndim,
                   (long long)t->shape[0], (long long)extent);
}

int ht_cuda_bind_channels(const ht_op* op, const ht_cuda_after* after, int64_t groups, int64_t extent, const DLTensor* const* given,
                          int32_t count, int device, ht_cuda_channels* out, ht_error* error) {
  int32_t wanted = 0;
  memset(out, 0, sizeof *out);
  if (!after->fused) {
    if (count > 1) return ht_refuse(error, "TypeError", "it has no epilogue: bind the weight, and perhaps a bias");
    if (count < 1 || given[0] == NULL) return 0;
    if (op->optional_count == 0)
      return ht_refuse(error, "TypeError", "it writes sums of bytes as they are: bind the weight alone, or tune an op with a bias in its epilogue");
    return bind_one(op, "bias", groups, extent, given[0], device, out, error);
  }
  for (int i = HT_FIRST_EXTRA; i < op->operand_count; ++i) {
    const char* name = op->operands[i].name;
    if (place_of(name) < 0) continue; /* what is added comes with a call */
    if (wanted >= count || given[wanted] == NULL)
      return ht_refuse(error, "ValueError", strcmp(name, "bias") == 0 ? "its epilogue adds a bias: bind one" : "its epilogue reads %s: bind it", name);
    if (bind_one(op, name, groups, extent, given[wanted], device, out, error) != 0) return -1;
    ++wanted;
  }
  for (int32_t i = wanted; i < count; ++i)
    if (given[i] != NULL) return ht_refuse(error, "ValueError", out->values[HT_BIAS] == NULL ? "its epilogue adds no bias: bind the weight alone"
                                           : "its epilogue reads %d values of a channel, more were given", (int)wanted);
  return 0;
}

int ht_cuda_meet_channels(const ht_cuda_channels* channels, int64_t bytes, const void* y, int64_t y_bytes) {
  for (int i = 0; i < HT_CHANNELS; ++i)
    if (ht_cuda_meet(y, y_bytes, channels->values[i], bytes)) return 1;
  return 0;
}

void ht_cuda_tell(ht_cuda_args* args, const ht_cuda_after* after, const ht_cuda_channels* channels) {
  args->after = after->steps;
  args->y_type = after->y_type;
  args->bias = channels->values[HT_BIAS];
  args->scale = channels->values[HT_SCALE];
  args->low = channels->values[HT_LOW];
  args->high = channels->values[HT_HIGH];
  args->slope = channels->values[HT_SLOPE];
}
