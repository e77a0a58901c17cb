/* The two functions that ONNX Runtime looks for, and the factory that they make. */
#include <stdlib.h>
#include <string.h>

#include "provider.h"

#define EXPORTED __attribute__((visibility("default")))

static const char* factory_name(const OrtEpFactory* base) { return (void)base, PROVIDER_NAME; }

static const char* factory_vendor(const OrtEpFactory* base) { return (void)base, "haotuner"; }

static uint32_t factory_vendor_id(const OrtEpFactory* base) { return (void)base, 0; } /* of no hardware: PCI has no number for it */

static const char* factory_version(const OrtEpFactory* base) { return (void)base, HAOTUNER_ORT_VERSION; }

/* The provider computes on CPUs: one device. */
static OrtStatus* supported_devices(OrtEpFactory* base, const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** out, size_t room, size_t* used) {
  provider_factory* own = (provider_factory*)base;
  typedef OrtStatus* (*create_device)(OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs*, const OrtKeyValuePairs*, OrtEpDevice**);
  *used = 0;
  for (size_t i = 0; i < count && *used < room; ++i) {
    if (ORT_CALL(own->api, API_HARDWARE_DEVICE_TYPE, int (*)(const OrtHardwareDevice*))(devices[i]) != ORT_DEVICE_CPU) continue;
    OrtStatus* status = ORT_CALL(own->ep_api, EP_API_CREATE_EP_DEVICE, create_device)(base, devices[i], NULL, NULL, &out[*used]);
    if (status != NULL) return status;
    ++*used;
  }
  return NULL;
}

static OrtStatus* create_ep(OrtEpFactory* base, const OrtHardwareDevice* const* devices, const OrtKeyValuePairs* const* metadata, size_t count,
                            const OrtSessionOptions* options, const OrtLogger* logger, OrtEp** out) {
  (void)devices, (void)metadata;
  provider_factory* own = (provider_factory*)base;
  *out = NULL;
  if (count != 1) return provider_refuse(own->api, ORT_INVALID_ARGUMENT, "%zu devices were passed; it computes on one CPU", count);
  return provider_make(own, options, logger, out);
}

static void release_ep(OrtEpFactory* base, OrtEp* ep) {
  (void)base;
  provider_free(ep);
}

/* Tensors lie in the runtime's own memory: no allocator, copy or stream of the provider's is needed. */
static OrtStatus* no_allocator(OrtEpFactory* base, const void* memory, const OrtKeyValuePairs* options, void** out) {
  (void)base, (void)memory, (void)options;
  *out = NULL;
  return NULL;
}

static void release_allocator(OrtEpFactory* base, void* allocator) { (void)base, (void)allocator; }

static OrtStatus* no_data_transfer(OrtEpFactory* base, void** out) {
  (void)base;
  *out = NULL;
  return NULL;
}

static bool is_stream_aware(const OrtEpFactory* base) { return (void)base, false; }

EXPORTED OrtStatus* CreateEpFactories(const char* name, const OrtApiBase* runtime, const OrtLogger* logger, OrtEpFactory** out, size_t room, size_t* used) {
  (void)name, (void)logger;
  *used = 0;
  ort_table api = runtime->GetApi(ORT_VERSION_USED);
  if (api == NULL) /* an older runtime: its first table has what an error needs */
    return provider_refuse(runtime->GetApi(1), ORT_FAIL, "ONNX Runtime %s has no API of version %d; it needs ONNX Runtime 1.%d or newer", runtime->GetVersionString(),
                           ORT_VERSION_USED, ORT_VERSION_USED);
  if (room < 1) return provider_refuse(api, ORT_INVALID_ARGUMENT, "there is no room for a factory");
  provider_factory* own = calloc(1, sizeof *own);
  if (own == NULL) return provider_refuse(api, ORT_FAIL, "no memory for a factory");
  own->api = api;
  own->ep_api = ORT_CALL(api, API_GET_EP_API, ort_table (*)(void))();
  own->base.version = ORT_VERSION_USED;
  own->base.GetName = factory_name;
  own->base.GetVendor = factory_vendor;
  own->base.GetSupportedDevices = supported_devices;
  own->base.CreateEp = create_ep;
  own->base.ReleaseEp = release_ep;
  own->base.GetVendorId = factory_vendor_id;
  own->base.GetVersion = factory_version;
  own->base.CreateAllocator = no_allocator;
  own->base.ReleaseAllocator = release_allocator;
  own->base.CreateDataTransfer = no_data_transfer;
  own->base.IsStreamAware = is_stream_aware;
  out[0] = &own->base;
  *used = 1;
  return NULL;
}

EXPORTED OrtStatus* ReleaseEpFactory(OrtEpFactory* base) {
  free(base);
  return NULL;
}
