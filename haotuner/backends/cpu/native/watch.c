/* A look at the machine by itself. Part of every measuring library. */
#include "sampling.h"

/* watch(w, samples float64 [2, room]): looks at the machine until there is no more room, going through the weights once; they
 * must have room for that, or what was read first is read again, from cache. */
HT_EXPORT int __tvm_ffi_ht_watch(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor *w = count == 2 ? tensor(&args[0]) : NULL, *out = count == 2 ? tensor(&args[1]) : NULL;
  if (w == NULL || out == NULL || out->ndim != 2) return fail("expected (w, samples)");
  int64_t room = out->shape[1], bytes = w->shape[0] * (int64_t)sizeof(float);
  double* samples = out->data;
  for (int64_t i = 0; i < room; ++i)
    watch((const char*)w->data + w->byte_offset, bytes, i * WATCH_BYTES, &samples[i], &samples[room + i]);
  return answer(result, room);
}
