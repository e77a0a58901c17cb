/* The functions that the server calls: a model opens REPOSITORY/VERSION/pack, and every instance of it serves requests from there. */
#define _GNU_SOURCE
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend.h"

TRITONSERVER_Error* triton_refuse(int code, const char* format, ...) {
  char text[1024];
  va_list words;
  va_start(words, format);
  int used = snprintf(text, sizeof text, "haotuner: ");
  vsnprintf(text + used, sizeof text - (size_t)used, format, words);
  va_end(words);
  return TRITONSERVER_ErrorNew(code, text);
}

TRITONSERVER_Error* triton_failed(const ht_error* error) {
  int of_caller = error->code == HT_BAD_TYPE || error->code == HT_BAD_VALUE;
  int code = of_caller ? TRITON_ERROR_INVALID_ARG : error->code == HT_NO_MEMORY ? TRITON_ERROR_UNAVAILABLE : error->code == HT_PACK_MISMATCH ? TRITON_ERROR_UNSUPPORTED : TRITON_ERROR_INTERNAL;
  return triton_refuse(code, "%s", error->text);
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Errors of calls that only tell the server something are let go: the request was answered. */
static void let_go(TRITONSERVER_Error* error) {
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  (void)backend;
  uint32_t major = 0, minor = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_ApiVersion(&major, &minor);
  if (error == NULL && major != TRITON_API_MAJOR)
    return triton_refuse(TRITON_ERROR_UNSUPPORTED, "the server's backend API is %u.%u, this backend is for version %d; install one that fits", major, minor, TRITON_API_MAJOR);
  return error;
}

/* Threads of a call, the parameter threads, else the cores of the process; 0: the parameter is no such number. */
static int threads_of(const char* json, size_t size, char text[64]) {
  cpu_set_t set;
  int is_set = config_parameter(json, size, "threads", text, 64);
  if (is_set == 0) return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
  char* end = text;
  long count = is_set < 0 ? 0 : strtol(text, &end, 10);
  return is_set > 0 && *end == 0 && end != text && count >= 1 && count <= 1024 ? (int)count : 0;
}

/* Name of the pack's model: the parameter model, else the server's name for it, else the only one. */
static TRITONSERVER_Error* name_of(const ht_pack* pack, const char* json, size_t size, const char* served, const char** out) {
  char chosen[256] = "";
  if (config_parameter(json, size, "model", chosen, sizeof chosen) < 0) return triton_refuse(TRITON_ERROR_INVALID_ARG, "parameter model of %s is too long or has escapes", served);
  const char* name = chosen[0] != 0 ? chosen : served;
  int count = ht_model_count(pack);
  for (int i = 0; i < count; ++i)
    if (strcmp(ht_model_name(pack, i), name) == 0) return *out = ht_model_name(pack, i), NULL;
  if (chosen[0] == 0 && count == 1) return *out = ht_model_name(pack, 0), NULL;
  return triton_refuse(TRITON_ERROR_NOT_FOUND, "the pack of %s holds no model %s but %d others; set parameters { key: \"model\" } to the name of one", served, name, count);
}

static TRITONSERVER_Error* open_model(served_model* own, const char* folder, const char* served, const char* json, size_t size) {
  char threads[64];
  const char* name = NULL;
  ht_error failed;
  ht_model_end end;
  int count = threads_of(json, size, threads);
  if (count == 0) return triton_refuse(TRITON_ERROR_INVALID_ARG, "parameter threads of %s is %s; it is a number from 1 to 1024", served, threads);
  if (ht_pack_open(folder, count, &own->pack, &failed) != HT_OK) return triton_failed(&failed);
  TRITONSERVER_Error* error = name_of(own->pack, json, size, served, &name);
  if (error != NULL) return error;
  if (ht_model_open(own->pack, name, &own->model, &failed) != HT_OK) return triton_failed(&failed);
  while (ht_model_input(own->model, own->input_count, &end) == HT_OK) ++own->input_count;
  while (ht_model_output(own->model, own->output_count, &end) == HT_OK) ++own->output_count;
  return NULL;
}

static void free_model(served_model* own) {
  if (own == NULL) return;
  ht_model_free(own->model);
  ht_pack_close(own->pack);
  free(own);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char *name, *location, *json = NULL;
  uint64_t version;
  int artifact;
  size_t size = 0;
  char folder[PATH_MAX];
  TRITONSERVER_Message* config = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelName(model, &name);
  if (error == NULL) error = TRITONBACKEND_ModelVersion(model, &version);
  if (error == NULL) error = TRITONBACKEND_ModelRepository(model, &artifact, &location);
  if (error != NULL) return error;
  if (artifact != TRITON_ARTIFACT_FILESYSTEM) return triton_refuse(TRITON_ERROR_UNSUPPORTED, "%s lies in no folder", name);
  if (snprintf(folder, sizeof folder, "%s/%llu/pack", location, (unsigned long long)version) >= (int)sizeof folder) return triton_refuse(TRITON_ERROR_INVALID_ARG, "the path of %s is too long", name);
  served_model* own = calloc(1, sizeof *own);
  if (own == NULL) return triton_refuse(TRITON_ERROR_UNAVAILABLE, "no memory for %s", name);
  error = TRITONBACKEND_ModelConfig(model, 1, &config);
  if (error == NULL) error = TRITONSERVER_MessageSerializeToJson(config, &json, &size);
  if (error == NULL) error = open_model(own, folder, name, json, size);
  if (config != NULL) let_go(TRITONSERVER_MessageDelete(config));
  if (error == NULL) error = TRITONBACKEND_ModelSetState(model, own);
  if (error != NULL) free_model(own);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelState(model, &state);
  if (error == NULL) free_model(state);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model;
  void* state = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceModel(instance, &model);
  if (error == NULL) error = TRITONBACKEND_ModelState(model, &state);
  if (error == NULL) error = TRITONBACKEND_ModelInstanceSetState(instance, state);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  (void)instance; /* the model has what its instances use */
  return NULL;
}

/* Answer a request and release it. Whether it was answered without an error. */
static int serve(TRITONBACKEND_ModelInstance* instance, const served_model* own, TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = NULL;
  uint64_t start = now_ns(), end;
  TRITONSERVER_Error* error = TRITONBACKEND_ResponseNew(&response, request);
  int is_served = 0;
  if (error == NULL) {
    error = answer_request(own, request, response);
    is_served = error == NULL;
    let_go(TRITONBACKEND_ResponseSend(response, TRITON_RESPONSE_COMPLETE_FINAL, error));
  }
  let_go(error);
  end = now_ns();
  let_go(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, is_served, start, start, end, end));
  let_go(TRITONBACKEND_RequestRelease(request, TRITON_REQUEST_RELEASE_ALL));
  return is_served;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
  void* state = NULL;
  uint64_t start = now_ns(), answered = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceState(instance, &state);
  if (error != NULL) return error; /* the server keeps the requests */
  for (uint32_t i = 0; i < count; ++i) answered += (uint64_t)serve(instance, state, requests[i]);
  uint64_t end = now_ns();
  if (answered > 0) let_go(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, answered, start, start, end, end));
  return NULL;
}
