/* The part of ONNX Runtime's C API that this provider calls, written from its public documentation: types, codes, and numbers of entries.
 *
 * OrtApi and OrtEpApi are tables of function pointers that only grow at their ends, so an entry's number holds for every later version.
 * ORT_VERSION_USED is the version that brought the last entry used here; a runtime hands out a table for it, or none if it is older. */
#ifndef HT_ORT_API_H_
#define HT_ORT_API_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION_USED 24 /* ONNX Runtime 1.24: shapes of tensors without a copy */

typedef struct OrtStatus OrtStatus;
typedef struct OrtLogger OrtLogger;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValue OrtValue;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;

typedef void (*ort_entry)(void);
typedef const ort_entry* ort_table; /* OrtApi or OrtEpApi */

typedef struct {
  ort_table (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;

enum { ORT_OK = 0, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NO_SUCHFILE = 3, ORT_EP_FAIL = 11 };
enum { ORT_WARNING = 2 };      /* severity of a message */
enum { ORT_DEVICE_CPU = 0 };   /* kind of hardware */

/* Numbers of entries. */
enum {
  API_CREATE_STATUS = 0,
  API_GET_TENSOR_MUTABLE_DATA = 51,
  API_KERNEL_CONTEXT_GET_INPUT = 90,
  API_KERNEL_CONTEXT_GET_OUTPUT = 91,
  API_RELEASE_STATUS = 93,
  API_LOGGER_LOG_MESSAGE = 247,
  API_GET_VALUE_INFO_NAME = 289,
  API_GET_KEY_VALUE_PAIRS = 298,
  API_RELEASE_KEY_VALUE_PAIRS = 300,
  API_HARDWARE_DEVICE_TYPE = 307,
  API_GET_EP_API = 317,
  API_VALUE_INFO_IS_GRAPH_OUTPUT = 330,
  API_VALUE_INFO_IS_CONSTANT_INITIALIZER = 331,
  API_GRAPH_GET_MODEL_PATH = 334,
  API_GRAPH_GET_NUM_NODES = 344,
  API_GRAPH_GET_NODES = 345,
  API_GRAPH_GET_PARENT_NODE = 346,
  API_NODE_GET_NUM_INPUTS = 353,
  API_NODE_GET_INPUTS = 354,
  API_NODE_GET_NUM_OUTPUTS = 355,
  API_NODE_GET_OUTPUTS = 356,
  API_NODE_GET_NUM_IMPLICIT_INPUTS = 357,
  API_NODE_GET_IMPLICIT_INPUTS = 358, /* tensors that bodies of an If or a Loop read */
  API_NODE_GET_EP_NAME = 368,
  API_GET_SESSION_OPTIONS_CONFIG_ENTRIES = 379,
  API_GET_TENSOR_TYPE_AND_SHAPE_REFERENCE = 414,
  EP_API_CREATE_EP_DEVICE = 0,
  EP_API_ADD_NODES_TO_FUSE = 2,
};

/* Structures that this provider fills. Members behind the last used one are zeros: the runtime reads none that is newer than `version`. */
typedef struct {
  uint32_t version;
  bool drop_constant_initializers;
} ort_fusion_options;

struct OrtNodeComputeInfo {
  uint32_t version;
  OrtStatus* (*CreateState)(OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state);
  OrtStatus* (*Compute)(OrtNodeComputeInfo*, void* state, OrtKernelContext*);
  void (*ReleaseState)(OrtNodeComputeInfo*, void* state);
};

struct OrtEp {
  uint32_t version;
  const char* (*GetName)(const OrtEp*);
  OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
  OrtStatus* (*Compile)(OrtEp*, const OrtGraph** graphs, const OrtNode** fused, size_t count, OrtNodeComputeInfo** infos, OrtNode** context_nodes);
  void (*ReleaseNodeComputeInfos)(OrtEp*, OrtNodeComputeInfo** infos, size_t count);
  ort_entry layout[2], SetDynamicOptions, run[2], CreateAllocator, CreateSyncStreamForDevice, GetCompiledModelCompatibilityInfo, GetKernelRegistry;
  OrtStatus* (*IsConcurrentRunSupported)(OrtEp*, bool* is_supported);
  ort_entry later[24];
};

struct OrtEpFactory {
  uint32_t version;
  const char* (*GetName)(const OrtEpFactory*);
  const char* (*GetVendor)(const OrtEpFactory*);
  OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** out, size_t room, size_t* used);
  OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const* devices, const OrtKeyValuePairs* const* metadata, size_t count,
                         const OrtSessionOptions* options, const OrtLogger* logger, OrtEp** out);
  void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
  uint32_t (*GetVendorId)(const OrtEpFactory*);
  const char* (*GetVersion)(const OrtEpFactory*);
  ort_entry ValidateCompiledModelCompatibilityInfo;
  OrtStatus* (*CreateAllocator)(OrtEpFactory*, const void* memory, const OrtKeyValuePairs* options, void** out);
  void (*ReleaseAllocator)(OrtEpFactory*, void* allocator);
  OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, void** out);
  bool (*IsStreamAware)(const OrtEpFactory*);
  ort_entry later[32];
};

/* One entry, as a function of this type. */
#define ORT_CALL(table, number, type) ((type)(table)[number])

static inline OrtStatus* ort_status(ort_table api, int code, const char* text) {
  return ORT_CALL(api, API_CREATE_STATUS, OrtStatus * (*)(int, const char*))(code, text);
}

/* Calls that hand out one thing about another: every one has this form. */
#define ORT_GETTER(name, number, of, out_type)                                                \
  static inline OrtStatus* name(ort_table api, of object, out_type* out) {                    \
    return ORT_CALL(api, number, OrtStatus * (*)(of, out_type*))(object, out);                 \
  }
ORT_GETTER(ort_graph_path, API_GRAPH_GET_MODEL_PATH, const OrtGraph*, const char*)
ORT_GETTER(ort_graph_node_count, API_GRAPH_GET_NUM_NODES, const OrtGraph*, size_t)
ORT_GETTER(ort_graph_parent, API_GRAPH_GET_PARENT_NODE, const OrtGraph*, const OrtNode*)
ORT_GETTER(ort_node_ep_name, API_NODE_GET_EP_NAME, const OrtNode*, const char*)
ORT_GETTER(ort_node_input_count, API_NODE_GET_NUM_INPUTS, const OrtNode*, size_t)
ORT_GETTER(ort_node_output_count, API_NODE_GET_NUM_OUTPUTS, const OrtNode*, size_t)
ORT_GETTER(ort_node_implicit_count, API_NODE_GET_NUM_IMPLICIT_INPUTS, const OrtNode*, size_t)
ORT_GETTER(ort_value_name, API_GET_VALUE_INFO_NAME, const OrtValueInfo*, const char*)
ORT_GETTER(ort_value_is_output, API_VALUE_INFO_IS_GRAPH_OUTPUT, const OrtValueInfo*, bool)
ORT_GETTER(ort_value_is_constant, API_VALUE_INFO_IS_CONSTANT_INITIALIZER, const OrtValueInfo*, bool)
ORT_GETTER(ort_tensor_data, API_GET_TENSOR_MUTABLE_DATA, OrtValue*, void*)
ORT_GETTER(ort_session_entries, API_GET_SESSION_OPTIONS_CONFIG_ENTRIES, const OrtSessionOptions*, OrtKeyValuePairs*)
#undef ORT_GETTER

static inline OrtStatus* ort_graph_nodes(ort_table api, const OrtGraph* graph, const OrtNode** out, size_t count) {
  return ORT_CALL(api, API_GRAPH_GET_NODES, OrtStatus * (*)(const OrtGraph*, const OrtNode**, size_t))(graph, out, count);
}

enum { ORT_INPUTS = API_NODE_GET_INPUTS, ORT_OUTPUTS = API_NODE_GET_OUTPUTS, ORT_IMPLICIT_INPUTS = API_NODE_GET_IMPLICIT_INPUTS };

/* Values of a node: of ORT_INPUTS, ORT_OUTPUTS or ORT_IMPLICIT_INPUTS. */
static inline OrtStatus* ort_node_ends(ort_table api, int which, const OrtNode* node, const OrtValueInfo** out, size_t count) {
  return ORT_CALL(api, which, OrtStatus * (*)(const OrtNode*, const OrtValueInfo**, size_t))(node, out, count);
}

static inline OrtStatus* ort_input(ort_table api, const OrtKernelContext* context, size_t index, const OrtValue** out) {
  return ORT_CALL(api, API_KERNEL_CONTEXT_GET_INPUT, OrtStatus * (*)(const OrtKernelContext*, size_t, const OrtValue**))(context, index, out);
}

static inline OrtStatus* ort_output(ort_table api, OrtKernelContext* context, size_t index, const int64_t* shape, size_t rank, OrtValue** out) {
  return ORT_CALL(api, API_KERNEL_CONTEXT_GET_OUTPUT, OrtStatus * (*)(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**))(context, index, shape, rank, out);
}

/* Element type, extents that live as long as the value, and their number. */
static inline OrtStatus* ort_tensor_shape(ort_table api, const OrtValue* value, int* type, const int64_t** shape, size_t* rank) {
  return ORT_CALL(api, API_GET_TENSOR_TYPE_AND_SHAPE_REFERENCE, OrtStatus * (*)(const OrtValue*, int*, const int64_t**, size_t*))(value, type, shape, rank);
}

static inline void ort_release_status(ort_table api, OrtStatus* status) { ORT_CALL(api, API_RELEASE_STATUS, void (*)(OrtStatus*))(status); }

#endif /* HT_ORT_API_H_ */
