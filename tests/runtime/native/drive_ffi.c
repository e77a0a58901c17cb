/* The doors of a pack's library for tvm-ffi, with every argument that they do not take: drive_ffi PACK OP, of a dense op on device 0 or of
 * batch_matmul_k16_fp16_nt. Prints
 * "right". Arguments are on the heap and as many as are said, so that a sanitizer sees one too far. Link with -rdynamic. */
#define _GNU_SOURCE
#include "framework.h"

#include <dlfcn.h>

#include "cuda/cu.h"
#include "ht_limits.h"
#include "open.h"

typedef int (*door)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
static ht_cu cu;
static CUcontext context;
static TVMFFIAny result;

static void* place(int64_t bytes) {
  CUdeviceptr found;
  CHECK(cu.CtxPushCurrent(context) == 0 && cu.MemAlloc(&found, (size_t)bytes) == 0 && cu.CtxPopCurrent(&context) == 0);
  return (void*)(size_t)found;
}

static TVMFFIAny none(void) { return (TVMFFIAny){.type_index = kTVMFFINone}; }
static TVMFFIAny whole(int64_t value) { return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = value}; }
static TVMFFIAny real(double value) { return (TVMFFIAny){.type_index = kTVMFFIFloat, .v_float64 = value}; }
static TVMFFIAny opaque(void* value) { return (TVMFFIAny){.type_index = kTVMFFIOpaquePtr, .v_ptr = value}; }
static TVMFFIAny tensor(DLTensor* value) { return (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = value}; }

static int called(door function, const TVMFFIAny* args, int count) {
  TVMFFIAny* exact = malloc(sizeof *exact * (size_t)count + (count == 0));
  memcpy(exact, args, sizeof *exact * (size_t)count);
  raised[0] = 0, result = real(-7);
  const int rc = function(NULL, exact, count, &result);
  free(exact);
  return rc;
}
#define TAKEN(function, args, count)                                                          \
  do {                                                                                        \
    const int rc_ = called(function, args, count);                                            \
    if (rc_ != 0) fprintf(stderr, "line %d: %s\n", __LINE__, raised), exit(1);                \
  } while (0)
#define RAISED(function, args, count, words)                                                  \
  do {                                                                                        \
    const int rc_ = called(function, args, count), alive_ = alive;                            \
    if (rc_ != -1 || strstr(raised, words) == NULL || result.type_index != kTVMFFIFloat || alive_ != alive) \
      fprintf(stderr, "line %d: %d %s\n", __LINE__, rc_, raised), exit(1);                    \
  } while (0)

static door find(void* library, const char* name) {
  char symbol[200];
  door found;
  snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", name);
  *(void**)&found = dlsym(library, symbol);
  CHECK(found != NULL);
  return found;
}

/* Binding and preparing: `right` is (op, weight, bias, bytes); bytes are wrong in one way each. */
static void records(door bind, door prepare, const TVMFFIAny right[4], const DLTensor* bytes, CUstream stream) {
  TVMFFIAny args[5] = {right[0], right[1], right[2], right[3], none()}, ready[4] = {right[0], right[3], whole((int64_t)(size_t)stream), none()};
  for (int count = 0; count <= 5; ++count)
    if (count != 4) RAISED(bind, args, count, "expected (op, weight, bias or None, bytes) with tensors of a device");
  for (int count = 0; count <= 2; ++count) RAISED(prepare, ready, count, "expected (op, bytes of a bound weight, stream)");
  int64_t shape[2] = {bytes->shape[0], 1};
  DLTensor wrong[] = {*bytes, *bytes, *bytes, *bytes, *bytes, *bytes, *bytes};
  for (int i = 0; i < 7; ++i) wrong[i].shape = shape;
  wrong[0].device.device_type = kDLCUDA, wrong[1].dtype.bits = 16, wrong[2].dtype.lanes = 2, wrong[3].ndim = 2, wrong[4].data = NULL;
  wrong[4].byte_offset = 128, wrong[5].byte_offset = 8, wrong[6].shape = shape + 1;
  for (int i = 0; i < 8; ++i) {
    args[3] = ready[1] = i < 7 ? tensor(&wrong[i]) : whole(3);
    RAISED(bind, args, 4, "expected (op, weight, bias or None, bytes)");
    RAISED(prepare, ready, 3, "expected (op, bytes of a bound weight, stream)");
  }
  args[3] = ready[1] = right[3];
  const TVMFFIAny ops[] = {whole(-1), whole(1), whole(1 << 20), real(0), none()};
  for (int i = 0; i < 5; ++i) {
    args[0] = ready[0] = ops[i];
    RAISED(bind, args, 4, "bind: expected (op, weight");
    RAISED(prepare, ready, 3, "prepare: expected (op, bytes");
  }
  args[0] = ready[0] = right[0], args[1] = whole(1);
  RAISED(bind, args, 4, "expected (op, weight, bias or None, bytes)");
  args[1] = right[1], args[2] = whole(1);
  RAISED(bind, args, 4, "expected (op, weight, bias or None, bytes)");
  args[2] = none(), args[1] = right[2];
  RAISED(bind, args, 4, "weight has rank 1");
  RAISED(prepare, ready, 3, "was not bound by this pack"); /* not bound yet */
  args[1] = right[1];
  TAKEN(bind, args, 4);
  CHECK(result.type_index == kTVMFFINone);
  TAKEN(bind, right, 4);
  const TVMFFIAny streams[] = {real(1), none(), tensor(wrong)};
  for (int i = 0; i < 3; ++i) {
    ready[2] = streams[i];
    RAISED(prepare, ready, 3, "expected (op, bytes of a bound weight, stream)");
  }
  ready[2] = opaque(stream);
  TAKEN(prepare, ready, 3);
  CHECK(result.type_index == kTVMFFINone);
}

static void opened(door open, door bytes, int64_t expected) {
  TVMFFIAny args[2] = {whole(0), none()};
  const TVMFFIAny wrong[] = {whole(-1), whole((1 << 20) + 1), real(0), none()};
  RAISED(open, args, 0, "open: expected the number of a device");
  RAISED(open, args, 2, "open: expected the number of a device");
  TAKEN(open, args, 1);
  CHECK(result.type_index == kTVMFFINone);
  TAKEN(bytes, args, 1);
  CHECK(result.type_index == kTVMFFIInt && result.v_int64 == expected);
  RAISED(bytes, args, 0, "bound_bytes: no such op on a device");
  for (int i = 0; i < 4; ++i) {
    args[0] = wrong[i];
    RAISED(open, args, 1, "open: expected the number of a device");
    RAISED(bytes, args, 1, "bound_bytes: no such op on a device");
  }
  args[0] = whole(99);
  RAISED(open, args, 1, "there is no device cuda:99");
}

/* Calls: `right` is (x, bound, out, setting, stream). */
static void calls(door call, const TVMFFIAny right[5], const DLTensor* x, CUstream stream, int64_t n) {
  TVMFFIAny args[7] = {right[0], right[1], right[2], right[3], right[4], none(), none()};
  void* const nowhere = malloc(1); /* no stream: the driver says so */
  TAKEN(call, args, 5);
  CHECK(result.type_index == kTVMFFINone && alive == 0);
  for (int count = 0; count < 4; ++count) RAISED(call, args, count, "expected the arguments (x, bound, out, setting[, stream[, offsets or residual]])");
  RAISED(call, args, 7, "expected the arguments (x, bound, out");
  RAISED(call, args, 6, "offsets is not a tensor");
  args[5] = right[0];
  RAISED(call, args, 6, "expected x, a bound weight, and out");
  args[3] = real(1);
  RAISED(call, args, 4, "expected the arguments");
  args[3] = right[3];
  /* whose stream: the argument's, or that of the tensor's framework */
  current_stream = nowhere;
  const TVMFFIAny streams[] = {right[4], opaque(stream), none(), whole((int64_t)(size_t)nowhere), opaque(nowhere), real(0), right[0]};
  for (int i = 0; i < 7; ++i) {
    args[4] = streams[i];
    if (i < 2) TAKEN(call, args, 5);
    else RAISED(call, args, 5, i < 5 ? "is the stream alive" : "expected the arguments");
  }
  RAISED(call, args, 4, "is the stream alive");
  current_stream = stream, stream_device = -1, args[4] = none();
  TAKEN(call, args, 4);
  CHECK(stream_type == kDLCUDA && stream_device == 0);
  TAKEN(call, args, 5);
  args[4] = right[4];
  const TVMFFIAny no_tensors[] = {none(), whole(0), opaque(nowhere)};
  for (int at = 0; at < 3; ++at)
    for (int i = at == 2; i < 3; ++i) {
      args[at] = no_tensors[i];
      RAISED(call, args, 5, at == 0 ? "x is not a tensor: pass a tensor of a CUDA device" : at == 1 ? "weight is not a tensor" : "out is not a tensor");
      args[at] = right[at];
    }
  /* no output: one of the framework's */
  const int before = alive;
  args[2] = none();
  TAKEN(call, args, 5);
  CHECK(result.type_index == kTVMFFITensor && alive == before + 1 && asked_for == x->shape[0] * n && stream_device == 0);
  TVMFFIAny kept = result;
  TVMFFIObjectDecRef(kept.v_obj);
  args[1] = whole(1);
  RAISED(call, args, 5, "weight is not a tensor");
  args[1] = right[1], args[3] = whole(0);
  RAISED(call, args, 5, "names no plan of this pack");
  CHECK(alive == before);
  args[3] = right[3], out_of_memory = 1;
  CHECK(called(call, args, 5) == -1 && alive == before);
  out_of_memory = 0;
  int64_t shape[33], minus[3] = {-1, 2, x->shape[1]}, *one = malloc(sizeof *one);
  for (int i = 0; i < 33; ++i) shape[i] = i < 32 ? 1 : x->shape[1];
  *one = x->shape[1] + 1;
  DLTensor wrong[] = {*x, *x, *x, *x, *x, *x};
  wrong[0].ndim = 0, wrong[1].ndim = 33, wrong[1].shape = shape, wrong[2].shape = NULL, wrong[3].ndim = 1, wrong[3].shape = one;
  wrong[4].device.device_type = kDLCPU, wrong[5].ndim = 3, wrong[5].shape = minus;
  asked = 0;
  for (int i = 0; i < 8; ++i) {
    args[0] = i < 6 ? tensor(&wrong[i]) : no_tensors[i - 6];
    RAISED(call, args, 5, i == 5 ? "x has a negative extent" : "no output can be made for this x");
    CHECK(asked == 0 && alive == before);
  }
  free(one);
  args[0] = right[0], args[2] = right[2];
  TAKEN(call, args, 5);
  free(nowhere);
}

/* Calls of products, whose factors both come with the call: `right` is (x, w, out, setting, stream). */
static void products(void* library, const char* name, CUstream stream) {
  enum { B = 2, M = 5, N = 6, K = 16 };
  const door call = find(library, name);
  int64_t x_shape[3] = {B, M, K}, w_shape[3] = {B, N, K}, y_shape[3] = {B, M, N};
  DLTensor x = {place(2 * B * M * K), {kDLCUDA, 0}, 3, {kDLFloat, 16, 1}, x_shape, NULL, 0}, w = x, y = x;
  w.shape = w_shape, w.data = place(2 * B * N * K), y.shape = y_shape, y.data = place(2 * B * M * N);
  const TVMFFIAny right[5] = {tensor(&x), tensor(&w), tensor(&y), whole(HT_MAX_THREADS), whole((int64_t)(size_t)stream)};
  TVMFFIAny args[9] = {right[0], right[1], right[2], right[3], right[4], none(), none(), none(), none()};
  void* const nowhere = malloc(1);
  const char* const wanted = "expected the arguments (x, w, out, setting[, stream[, bias[, scale[, mask]]]])";
  TAKEN(call, args, 5);
  CHECK(result.type_index == kTVMFFINone);
  for (int count = 0; count < 4; ++count) RAISED(call, args, count, wanted);
  RAISED(call, args, 9, wanted);
  TAKEN(call, args, 8); /* nothing beside */
  args[6] = whole(1);
  RAISED(call, args, 7, "scale is not a tensor");
  args[6] = right[1];
  RAISED(call, args, 7, "scale has dtype");
  args[6] = none();
  const TVMFFIAny settings[] = {real(1), none(), right[0]};
  for (int i = 0; i < 3; ++i) {
    args[3] = settings[i];
    RAISED(call, args, 4, wanted);
    RAISED(call, args, 5, wanted);
  }
  args[3] = whole(0);
  RAISED(call, args, 5, "names no plan of this pack");
  args[3] = right[3];
  current_stream = nowhere; /* whose stream: the argument's, or that of the tensor's framework */
  const TVMFFIAny streams[] = {right[4], opaque(stream), none(), whole((int64_t)(size_t)nowhere), opaque(nowhere), real(0), right[0]};
  for (int i = 0; i < 7; ++i) {
    args[4] = streams[i];
    if (i < 2) TAKEN(call, args, 5);
    else RAISED(call, args, 5, i < 5 ? "is the stream alive" : wanted);
  }
  RAISED(call, args, 4, "is the stream alive");
  current_stream = stream, stream_device = -1, args[4] = none();
  TAKEN(call, args, 4);
  CHECK(stream_type == kDLCUDA && stream_device == 0);
  stream_device = -1;
  TAKEN(call, args, 5);
  CHECK(stream_device == 0);
  args[4] = right[4];
  const TVMFFIAny no_tensors[] = {none(), whole(0), opaque(nowhere)};
  const char* const missing[] = {"x is not a tensor: pass a tensor of a CUDA device", "w is not a tensor", "out is not a tensor"};
  DLTensor far[] = {x, w, y};
  const char* const apart[] = {"w lives on cuda:0, x on cuda:1", "w lives on cuda:1, x on cuda:0", "out lives on cuda:1, x on cuda:0"};
  for (int at = 0; at < 3; ++at) {
    for (int i = 0; i < 3; ++i) {
      args[at] = no_tensors[i];
      RAISED(call, args, 5, missing[at]);
    }
    far[at].device.device_id = 1;
    args[at] = tensor(&far[at]);
    RAISED(call, args, 5, apart[at]);
    args[at] = right[at];
  }
  TAKEN(call, args, 5);
  free(nowhere);
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_door_op facts;
  CUdevice device;
  long long n, k;
  CHECK(argc == 3);
  if (ht_pack_open_on(argv[1], 0, &pack, &error) != HT_OK) return fprintf(stderr, "%s\n", error.text), 2;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define FIND(field, symbol, parameters) *(void**)&cu.field = dlsym(driver, #symbol);
  HT_CU_NEEDED(FIND)
  CHECK(cu.DeviceGet(&device, 0) == 0 && cu.DevicePrimaryCtxRetain(&context, device) == 0);
  memory_of = place;
  pack->door->describe(0, &facts);
  CUstream stream;
  CHECK(cu.CtxPushCurrent(context) == 0 && cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0 && cu.CtxPopCurrent(&context) == 0);
  if (strcmp(argv[2], "batch_matmul_k16_fp16_nt") == 0) {
    products(pack->library, argv[2], stream);
    ht_pack_close(pack);
    return printf("right\n") < 0;
  }
  CHECK(sscanf(argv[2], "dense_n%lld_k%lld", &n, &k) == 2);
  int64_t w_shape[2] = {n, k}, x_shape[2] = {8, k}, y_shape[2] = {8, n}, b_shape[1] = {n}, r_shape[1] = {facts.bound_bytes};
  const DLDataType dtype = {kDLFloat, strstr(argv[2], "fp16") == NULL ? 32 : 16, 1};
  DLTensor w = {place(4 * n * k), {kDLCUDA, 0}, 2, dtype, w_shape, NULL, 0}, x = w, y = w, b = w;
  x.shape = x_shape, x.data = place(32 * k), y.shape = y_shape, y.data = place(32 * n), b.shape = b_shape, b.ndim = 1, b.data = place(4 * n);
  char* memory = aligned_alloc(128, (size_t)(facts.bound_bytes + 255) / 128 * 128);
  memset(memory, 0, (size_t)facts.bound_bytes);
  DLTensor record = {memory, {kDLCPU, 0}, 1, {kDLUInt, 8, 1}, r_shape, NULL, 0};
  made_tensor boxed = {.tensor = x}; /* a tensor as an object */
  opened(find(pack->library, "ht_open"), find(pack->library, "ht_bound_bytes"), facts.bound_bytes);
  const TVMFFIAny bound[4] = {whole(0), tensor(&w), tensor(&b), tensor(&record)};
  records(find(pack->library, "ht_bind"), find(pack->library, "ht_prepare"), bound, &record, stream);
  TVMFFIAny right[5] = {tensor(&x), tensor(&record), tensor(&y), whole(HT_MAX_THREADS), whole((int64_t)(size_t)stream)};
  calls(find(pack->library, argv[2]), right, &x, stream, n);
  right[0] = (TVMFFIAny){.type_index = kTVMFFITensor, .v_obj = &boxed.head};
  calls(find(pack->library, argv[2]), right, &boxed.tensor, stream, n);
  CHECK(alive == 0);
  free(memory);
  ht_pack_close(pack);
  printf("right\n");
  return 0;
}
