/* A host that loads a backend as Triton Inference Server does, and has the functions that a backend calls.
 *   triton_host BACKEND LOCATION NAME VERSION MAJOR CONFIG REQUESTS OUT
 * REQUESTS: "request", then its lines "input NAME TYPE MEMORY BUFFERS BYTES RANK D0 D1 ..." each with its bytes behind the newline, and
 * "output NAME". All requests are one batch. Prints what became of each, with outputs whose bytes are appended to OUT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../integrations/triton/native/triton_api.h"

enum { MOST = 32, AXES = 16 };

struct TRITONSERVER_Error { int code; char text[1200]; };
struct TRITONSERVER_Message { const char* json; };
struct TRITONBACKEND_Model { const char *name, *location; uint64_t version; struct TRITONSERVER_Message config; void* state; };
struct TRITONBACKEND_ModelInstance { struct TRITONBACKEND_Model* model; void* state; uint64_t batches, good, bad; };
struct TRITONBACKEND_Input { char name[80]; int type, memory; uint32_t rank, buffers; uint64_t bytes; int64_t shape[AXES]; char* data; };
struct TRITONBACKEND_Output { char name[80]; int type; uint32_t rank; int64_t shape[AXES]; uint64_t bytes; void* data; };
struct TRITONBACKEND_Response { struct TRITONBACKEND_Output outputs[MOST]; uint32_t count; };
struct TRITONBACKEND_Request {
  struct TRITONBACKEND_Input inputs[MOST];
  uint32_t input_count, output_count;
  char outputs[MOST][80];
  int sent, released, no_memory;
  char error[1200];
  struct TRITONBACKEND_Response response;
};

static int errors_alive, messages_alive;
static uint32_t api_major;
static struct TRITONBACKEND_Request* of_response[MOST];

TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char* text) {
  TRITONSERVER_Error* error = calloc(1, sizeof *error);
  error->code = code;
  snprintf(error->text, sizeof error->text, "%s", text);
  ++errors_alive;
  return error;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { --errors_alive, free(error); }
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text, size_t* size) {
  *text = message->json;
  *size = strlen(message->json);
  return NULL;
}
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) { return (void)message, --messages_alive, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) { return *major = api_major, *minor = 19, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name) { return *name = model->name, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version) { return *version = model->version, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model, int* artifact, const char** location) {
  return *artifact = TRITON_ARTIFACT_FILESYSTEM, *location = model->location, NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t version, TRITONSERVER_Message** config) {
  if (version != 1) return TRITONSERVER_ErrorNew(TRITON_ERROR_UNSUPPORTED, "the configuration has version 1");
  return ++messages_alive, *config = &model->config, NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) { return *state = model->state, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) { return model->state = state, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Model** model) { return *model = instance->model, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) { return *state = instance->state, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) { return instance->state = state, NULL; }
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool success, uint64_t a,
                                                                uint64_t b, uint64_t c, uint64_t d) {
  if (request->released || a > b || b > c || c > d) return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "times or request");
  return *(success ? &instance->good : &instance->bad) += 1, NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance* instance, uint64_t batch, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return (void)a, (void)b, (void)c, (void)d, instance->batches += batch, NULL;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) { return *count = request->input_count, NULL; }
TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index, TRITONBACKEND_Input** input) {
  return *input = &request->inputs[index], NULL;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) { return *count = request->output_count, NULL; }
TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
  return *name = request->outputs[index], NULL;
}
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t flags) {
  return request->released += flags == TRITON_REQUEST_RELEASE_ALL, NULL;
}
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name, int* type, const int64_t** shape, uint32_t* rank, uint64_t* bytes,
                                                  uint32_t* buffers) {
  return *name = input->name, *type = input->type, *shape = input->shape, *rank = input->rank, *bytes = input->bytes, *buffers = input->buffers, NULL;
}
/* Buffers of equal size, the last of the rest; a single one lies one byte away from any alignment where the name ends in "_odd". */
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** data, uint64_t* bytes, int* memory, int64_t* memory_id) {
  uint64_t part = input->bytes / input->buffers;
  *data = input->data + part * index;
  *bytes = index + 1 == input->buffers ? input->bytes - part * index : part;
  return *memory = input->memory, *memory_id = 0, NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  for (int i = 0; i < MOST; ++i)
    if (of_response[i] == NULL) {
      of_response[i] = request;
      break;
    }
  return *response = &request->response, NULL;
}
static struct TRITONBACKEND_Request* request_of(TRITONBACKEND_Response* response) {
  for (int i = 0; i < MOST; ++i)
    if (of_response[i] != NULL && &of_response[i]->response == response) return of_response[i];
  abort();
}
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output, const char* name, int type, const int64_t* shape, uint32_t rank) {
  TRITONBACKEND_Output* own = *output = &response->outputs[response->count++];
  snprintf(own->name, sizeof own->name, "%s", name);
  own->type = type;
  own->rank = rank;
  memcpy(own->shape, shape, rank * sizeof *shape);
  return NULL;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** data, uint64_t bytes, int* memory, int64_t* memory_id) {
  if (*memory != TRITON_MEMORY_CPU) return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "the host has memory of the CPU alone");
  if (bytes > 1u << 26) return TRITONSERVER_ErrorNew(TRITON_ERROR_UNAVAILABLE, "the host has no such memory");
  output->bytes = bytes;
  *memory_id = 0;
  return *data = output->data = bytes == 0 ? NULL : malloc(bytes), NULL;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t flags, TRITONSERVER_Error* error) {
  struct TRITONBACKEND_Request* request = request_of(response);
  request->sent += flags == TRITON_RESPONSE_COMPLETE_FINAL;
  if (error != NULL) snprintf(request->error, sizeof request->error, "%s", error->text);
  return NULL;
}

static struct TRITONBACKEND_Request* read_requests(const char* path, uint32_t* count) {
  FILE* file = fopen(path, "rb");
  struct TRITONBACKEND_Request* all = calloc(MOST, sizeof *all);
  char word[80];
  *count = 0;
  while (file != NULL && fscanf(file, "%79s", word) == 1) {
    if (strcmp(word, "request") == 0) {
      ++*count;
      continue;
    }
    struct TRITONBACKEND_Request* request = &all[*count - 1];
    if (strcmp(word, "output") == 0) {
      if (fscanf(file, "%79s", request->outputs[request->output_count++]) != 1) exit(9);
      continue;
    }
    struct TRITONBACKEND_Input* input = &request->inputs[request->input_count++];
    unsigned long long bytes;
    if (fscanf(file, "%79s %d %d %u %llu %u", input->name, &input->type, &input->memory, &input->buffers, &bytes, &input->rank) != 6) exit(9);
    for (uint32_t a = 0; a < input->rank; ++a) {
      long long extent;
      if (fscanf(file, "%lld", &extent) != 1) exit(9);
      input->shape[a] = extent;
    }
    fgetc(file);
    input->bytes = bytes;
    input->data = (char*)malloc(bytes + 1) + (input->buffers == 1); /* one byte off: the wire has no alignment */
    if (fread(input->data, 1, bytes, file) != bytes) exit(9);
  }
  if (file != NULL) fclose(file);
  return all;
}

typedef TRITONSERVER_Error* (*of_backend)(TRITONBACKEND_Backend*);
typedef TRITONSERVER_Error* (*of_model)(TRITONBACKEND_Model*);
typedef TRITONSERVER_Error* (*of_instance)(TRITONBACKEND_ModelInstance*);
typedef TRITONSERVER_Error* (*of_requests)(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request**, uint32_t);

static void* library;
static void* entry(const char* name) {
  void* function = dlsym(library, name);
  if (function == NULL) printf("the backend has no %s\n", name), exit(8);
  return function;
}

static int failed(const char* step, TRITONSERVER_Error* error) {
  if (error == NULL) return 0;
  printf("%s: error %d %s\n", step, error->code, error->text);
  TRITONSERVER_ErrorDelete(error);
  return 1;
}

static void report(struct TRITONBACKEND_Request* request, uint32_t number, FILE* out) {
  printf("request %u sent=%d released=%d %s\n", number, request->sent, request->released, request->error[0] ? request->error : "ok");
  for (uint32_t i = 0; i < request->response.count; ++i) {
    struct TRITONBACKEND_Output* output = &request->response.outputs[i];
    if (request->error[0] == 0) {
      printf("output %s %d", output->name, output->type);
      for (uint32_t a = 0; a < output->rank; ++a) printf(" %lld", (long long)output->shape[a]);
      printf("\n");
      fwrite(output->data, 1, output->bytes, out);
    }
    free(output->data);
  }
  for (uint32_t i = 0; i < request->input_count; ++i) free(request->inputs[i].data - (request->inputs[i].buffers == 1));
}

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return printf("%s\n", dlerror()), 7;
  api_major = (uint32_t)atoi(argv[5]);
  struct TRITONBACKEND_Model model = {argv[3], argv[2], (uint64_t)atoi(argv[4]), {argv[6]}, NULL};
  struct TRITONBACKEND_ModelInstance instances[2] = {{.model = &model}, {.model = &model}};
  uint32_t count;
  if (failed("backend", ((of_backend)entry("TRITONBACKEND_Initialize"))(NULL))) return printf("left=%d\n", errors_alive), 1;
  if (failed("model", ((of_model)entry("TRITONBACKEND_ModelInitialize"))(&model))) return printf("left=%d messages=%d\n", errors_alive, messages_alive), 1;
  struct TRITONBACKEND_Request* all = read_requests(argv[7], &count);
  struct TRITONBACKEND_Request* pointers[MOST];
  FILE* out = fopen(argv[8], "wb");
  for (uint32_t i = 0; i < count; ++i) pointers[i] = &all[i];
  for (int i = 0; i < 2; ++i) failed("instance", ((of_instance)entry("TRITONBACKEND_ModelInstanceInitialize"))(&instances[i]));
  uint32_t first = count / 2; /* the batch in two, one for each instance */
  failed("execute", ((of_requests)entry("TRITONBACKEND_ModelInstanceExecute"))(&instances[0], pointers, first));
  failed("execute", ((of_requests)entry("TRITONBACKEND_ModelInstanceExecute"))(&instances[1], pointers + first, count - first));
  for (uint32_t i = 0; i < count; ++i) report(&all[i], i, out);
  for (int i = 0; i < 2; ++i) failed("instance", ((of_instance)entry("TRITONBACKEND_ModelInstanceFinalize"))(&instances[i]));
  failed("model", ((of_model)entry("TRITONBACKEND_ModelFinalize"))(&model));
  printf("good=%d bad=%d batched=%d left=%d messages=%d\n", (int)(instances[0].good + instances[1].good), (int)(instances[0].bad + instances[1].bad),
         (int)(instances[0].batches + instances[1].batches), errors_alive, messages_alive);
  fclose(out);
  free(all);
  dlclose(library);
  return 0;
}
