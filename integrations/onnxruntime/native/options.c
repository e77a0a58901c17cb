/* Options of a session: ep.haotuner.NAME, and the names under which the runtime files those of add_provider_for_devices. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "provider.h"

#define MOST_THREADS 1024

typedef struct {
  const char* name;
  size_t offset, size;
} option;

#define OPTION(name) {#name, offsetof(provider_options, name), sizeof((provider_options*)0)->name}
static const option options[] = {OPTION(pack), OPTION(threads), OPTION(model_sha256), OPTION(fallback), OPTION(tune), OPTION(shapes), OPTION(cache), OPTION(command)};
static const char* const prefixes[] = {"ep.haotuner.", "ep.haotunerexecutionprovider."};
#define COUNT(list) (sizeof(list) / sizeof *(list))

OrtStatus* provider_refuse(ort_table api, int code, const char* format, ...) {
  char text[TEXT_SIZE];
  va_list words;
  va_start(words, format);
  int used = snprintf(text, sizeof text, "%s: ", PROVIDER_NAME);
  vsnprintf(text + used, sizeof text - (size_t)used, format, words);
  va_end(words);
  return ort_status(api, code, text);
}

OrtStatus* provider_failed(ort_table api, const ht_error* error) {
  int of_caller = error->code == HT_BAD_TYPE || error->code == HT_BAD_VALUE;
  return provider_refuse(api, of_caller ? ORT_INVALID_ARGUMENT : ORT_EP_FAIL, "%s", error->text);
}

void provider_warn(const ort_host* host, const char* format, ...) {
  char text[TEXT_SIZE];
  va_list words;
  va_start(words, format);
  vsnprintf(text, sizeof text, format, words);
  va_end(words);
  typedef OrtStatus* (*log_message)(const OrtLogger*, int, const char*, const char*, int, const char*);
  OrtStatus* status = ORT_CALL(host->api, API_LOGGER_LOG_MESSAGE, log_message)(host->logger, ORT_WARNING, text, __FILE__, __LINE__, __func__);
  if (status != NULL) ort_release_status(host->api, status); /* a message that is lost stops nothing */
}

static const char* own_name(const char* key) {
  for (size_t i = 0; i < COUNT(prefixes); ++i)
    if (strncasecmp(key, prefixes[i], strlen(prefixes[i])) == 0) return key + strlen(prefixes[i]);
  return NULL;
}

static OrtStatus* take(ort_table api, const char* name, const char* value, provider_options* out) {
  for (size_t i = 0; i < COUNT(options); ++i) {
    if (strcmp(name, options[i].name) != 0) continue;
    char* target = (char*)out + options[i].offset;
    if (strlen(value) >= options[i].size) return provider_refuse(api, ORT_INVALID_ARGUMENT, "option %s has %zu letters; at most %zu are taken", name, strlen(value), options[i].size - 1);
    if (target[0] != 0 && strcmp(target, value) != 0) return provider_refuse(api, ORT_INVALID_ARGUMENT, "option %s is set to %s and to %s; set it once", name, target, value);
    strcpy(target, value);
    return NULL;
  }
  return provider_refuse(api, ORT_INVALID_ARGUMENT, "no option is called %.80s; there are pack, threads, model_sha256, fallback, tune, shapes, cache and command", name);
}

static int is_budget(const char* text) {
  size_t digits = strspn(text, "0123456789");
  return strcmp(text, "zero") == 0 || (digits > 0 && digits < 8 && (strcmp(text + digits, "s") == 0 || strcmp(text + digits, "m") == 0));
}

static int is_sha256(const char* text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

static OrtStatus* check(ort_table api, const provider_options* all) {
  if (all->pack[0] == 0 && all->tune[0] == 0)
    return provider_refuse(api, ORT_INVALID_ARGUMENT, "no pack is named: set ep.haotuner.pack to the folder that `haotuner tune` wrote, or ep.haotuner.tune to zero or a budget such as 60s");
  if (all->tune[0] != 0 && !is_budget(all->tune)) return provider_refuse(api, ORT_INVALID_ARGUMENT, "tune is %s; it is zero (predictions alone), or a budget such as 15s or 5m", all->tune);
  if (all->model_sha256[0] != 0 && !is_sha256(all->model_sha256)) return provider_refuse(api, ORT_INVALID_ARGUMENT, "model_sha256 is not 64 lower-case hex digits; pass the SHA-256 of the model's bytes");
  if (all->fallback[0] != 0 && strcmp(all->fallback, "0") != 0 && strcmp(all->fallback, "1") != 0) return provider_refuse(api, ORT_INVALID_ARGUMENT, "fallback is %s; it is 0 or 1", all->fallback);
  if (all->threads[0] != 0 && provider_threads(all) == 0) return provider_refuse(api, ORT_INVALID_ARGUMENT, "threads is %s; it is a number from 1 to %d", all->threads, MOST_THREADS);
  return NULL;
}

int provider_threads(const provider_options* all) {
  char* end;
  long count = strtol(all->threads, &end, 10);
  return *end == 0 && end != all->threads && count >= 1 && count <= MOST_THREADS ? (int)count : 0;
}

OrtStatus* provider_options_read(ort_table api, const OrtSessionOptions* session, provider_options* out) {
  OrtKeyValuePairs* entries = NULL;
  const char *const *keys, *const *values;
  size_t count = 0;
  memset(out, 0, sizeof *out);
  OrtStatus* status = ort_session_entries(api, session, &entries);
  if (status != NULL) return status;
  ORT_CALL(api, API_GET_KEY_VALUE_PAIRS, void (*)(const OrtKeyValuePairs*, const char* const**, const char* const**, size_t*))(entries, &keys, &values, &count);
  for (size_t i = 0; status == NULL && i < count; ++i)
    if (own_name(keys[i]) != NULL) status = take(api, own_name(keys[i]), values[i], out);
  ORT_CALL(api, API_RELEASE_KEY_VALUE_PAIRS, void (*)(OrtKeyValuePairs*))(entries);
  return status == NULL ? check(api, out) : status;
}
