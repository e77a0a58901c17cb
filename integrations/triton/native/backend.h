/* The insides of the backend: a pack's model for each model of the server. */
#ifndef HT_TRITON_BACKEND_H_
#define HT_TRITON_BACKEND_H_

#include "haotuner.h"
#include "triton_api.h"

typedef struct { /* of a model of the server; its instances share it */
  ht_pack* pack;
  ht_model* model;
  int input_count, output_count;
} served_model;

TRITONSERVER_Error* triton_refuse(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));

/* The backend's error of one of the library's. */
TRITONSERVER_Error* triton_failed(const ht_error* error);

/* config.c: the text of a parameter of the model's configuration, parameters.NAME.string_value. 1: out has it; 0: it is not set; -1: it does not fit. */
int config_parameter(const char* json, size_t size, const char* name, char* out, size_t room);

/* request.c: answer one request; NULL, or why not. The response is sent either way. */
TRITONSERVER_Error* answer_request(const served_model* own, TRITONBACKEND_Request* request, TRITONBACKEND_Response* response);

#endif /* HT_TRITON_BACKEND_H_ */
