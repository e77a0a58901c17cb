/* The part of Triton Inference Server's backend API that this backend uses, written from its public documentation.
 *
 * The server's program has the functions; they are bound when it loads the backend. All are of version 1.0 of the API. */
#ifndef HT_TRITON_API_H_
#define HT_TRITON_API_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRITON_API_MAJOR 1

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONBACKEND_Backend TRITONBACKEND_Backend;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_ModelInstance TRITONBACKEND_ModelInstance;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Response TRITONBACKEND_Response;
typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;
typedef struct TRITONBACKEND_Output TRITONBACKEND_Output;

enum { TRITON_ERROR_INTERNAL = 1, TRITON_ERROR_NOT_FOUND = 2, TRITON_ERROR_INVALID_ARG = 3, TRITON_ERROR_UNAVAILABLE = 4, TRITON_ERROR_UNSUPPORTED = 5 };
enum { TRITON_MEMORY_CPU = 0, TRITON_MEMORY_CPU_PINNED = 1, TRITON_MEMORY_GPU = 2 };
enum { TRITON_ARTIFACT_FILESYSTEM = 0 };
enum { TRITON_RESPONSE_COMPLETE_FINAL = 1 };
enum { TRITON_REQUEST_RELEASE_ALL = 1 };
enum { TRITON_TYPE_BOOL = 1, TRITON_TYPE_UINT8, TRITON_TYPE_UINT16, TRITON_TYPE_UINT32, TRITON_TYPE_UINT64, TRITON_TYPE_INT8, TRITON_TYPE_INT16, TRITON_TYPE_INT32,
       TRITON_TYPE_INT64, TRITON_TYPE_FP16, TRITON_TYPE_FP32, TRITON_TYPE_FP64, TRITON_TYPE_BYTES, TRITON_TYPE_BF16 };

/* Functions of the server. */
TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char* text);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error);
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text, size_t* size);
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message);
TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor);
TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name);
TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version);
TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model, int* artifact, const char** location);
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t version, TRITONSERVER_Message** config);
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state);
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Model** model);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool success, uint64_t start_ns,
                                                                uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t end_ns);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance* instance, uint64_t batch, uint64_t start_ns, uint64_t compute_start_ns,
                                                                     uint64_t compute_end_ns, uint64_t end_ns);
TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count);
TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index, TRITONBACKEND_Input** input);
TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count);
TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name);
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t flags);
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name, int* type, const int64_t** shape, uint32_t* rank, uint64_t* bytes,
                                                  uint32_t* buffers);
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** data, uint64_t* bytes, int* memory, int64_t* memory_id);
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request);
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output, const char* name, int type, const int64_t* shape, uint32_t rank);
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** data, uint64_t bytes, int* memory, int64_t* memory_id);
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t flags, TRITONSERVER_Error* error);

/* Functions of the backend. */
#define TRITON_EXPORTED __attribute__((visibility("default")))
TRITON_EXPORTED TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend);
TRITON_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model);
TRITON_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model);
TRITON_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance);
TRITON_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance);
TRITON_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count);

#endif /* HT_TRITON_API_H_ */
