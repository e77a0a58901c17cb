/* The models' door as packs had it before version 2: schedules are constants of the library (tests/runtime/compiled_schedules.py writes
 * ht_models), and models are opened by their index. */
#define ht_pack_models newer_door
#include <string.h>

#include "model/model_api.c"
#undef ht_pack_models

typedef struct {
  const int64_t* words;
  int64_t count;
} compiled_schedule;

extern const compiled_schedule ht_models[];
extern const int ht_model_count;

static const int64_t* compiled_words(int index, int64_t* count) { return *count = ht_models[index].count, ht_models[index].words; }

HT_EXPORT int ht_pack_model_open_on(int index, int weights, int device, int threads, ht_model** out, const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_open_on(int index, int weights, int device, int threads, ht_model** out, const char** kind, char* text, size_t size) {
  return open_model(ht_models[index].words, ht_models[index].count, weights, 1, device, threads, out, kind, text, size);
}

HT_EXPORT int ht_pack_model_open_unchecked(int index, int weights, int device, int threads, ht_model** out, const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_open_unchecked(int index, int weights, int device, int threads, ht_model** out, const char** kind, char* text, size_t size) {
  return open_model(ht_models[index].words, ht_models[index].count, weights, 0, device, threads, out, kind, text, size);
}

static int open_compiled(int index, int weights, int threads, ht_model** out, const char** kind, char* text, size_t size) {
  return ht_pack_model_open_on(index, weights, 0, threads, out, kind, text, size);
}

HT_EXPORT const ht_model_door* ht_pack_models(void);
HT_EXPORT const ht_model_door* ht_pack_models(void) {
  static ht_model_door door;
  const ht_model_open_compiled open_by_index = open_compiled;
  door = *newer_door();
  door.version = HT_MODEL_DOOR_COMPILED;
  door.compiled = ht_model_count;
  door.compiled_words = compiled_words;
  memcpy(&door.open, &open_by_index, sizeof door.open);
  return &door;
}
