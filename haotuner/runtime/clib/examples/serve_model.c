/* Serve a whole model of a pack from C:  serve_model PACK MODEL THREADS DIM...   Inputs are 0, 1/8, ... 7/8, 0, ... (whole numbers:
 * 0, 1, 0, ...); prints shape and sum of each output. Sizes stand in the order of ht_model_dim; without them they are listed. */
#include <haotuner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 }; /* inputs, outputs and dimensions that this example takes */
typedef struct {
  DLTensor tensors[MOST];
  int64_t shapes[MOST][HT_MODEL_MAX_AXES];
  int count;
} ends;

static int stop(const char* what, const ht_error* error) {
  fprintf(stderr, "%s: %s (%d)\n", what, error->text, (int)error->code);
  return 1;
}

static int64_t elements(const DLTensor* t) {
  int64_t count = 1;
  for (int axis = 0; axis < t->ndim; ++axis) count *= t->shape[axis];
  return count;
}

/* A compact tensor of this shape with memory of its own; a server passes its own buffers instead. */
static int add(ends* all, const ht_model_end* end, const int64_t* shape) {
  DLTensor t = {NULL, {kDLCPU, 0}, end->ndim, end->dtype, all->shapes[all->count], NULL, 0};
  memcpy(t.shape, shape, (size_t)end->ndim * sizeof *shape);
  t.data = calloc((size_t)elements(&t) + 1, (size_t)(end->dtype.bits + 7) / 8);
  all->tensors[all->count++] = t;
  return t.data != NULL;
}

static void fill(DLTensor* t) {
  for (int64_t i = 0, count = elements(t); i < count; ++i) {
    if (t->dtype.code == kDLFloat && t->dtype.bits == 32) ((float*)t->data)[i] = (float)(i % 8) / 8;
    else if (t->dtype.code == kDLFloat && t->dtype.bits == 64) ((double*)t->data)[i] = (double)(i % 8) / 8;
    else if (t->dtype.code == kDLInt && t->dtype.bits == 64) ((int64_t*)t->data)[i] = i % 2;
    else if (t->dtype.code == kDLInt && t->dtype.bits == 32) ((int32_t*)t->data)[i] = (int32_t)(i % 2);
    else return; /* another type: zeros */
  }
}

static double total(const DLTensor* t) {
  double sum = 0;
  for (int64_t i = 0, count = elements(t); i < count; ++i) {
    if (t->dtype.code == kDLFloat && t->dtype.bits == 32) sum += ((float*)t->data)[i];
    else if (t->dtype.code == kDLFloat && t->dtype.bits == 64) sum += ((double*)t->data)[i];
    else if (t->dtype.code == kDLInt && t->dtype.bits == 64) sum += (double)((int64_t*)t->data)[i];
    else if (t->dtype.code == kDLInt && t->dtype.bits == 32) sum += ((int32_t*)t->data)[i];
  }
  return sum;
}

/* The size that a request gives to a dimension; -1: the model has no dimension of this name. */
static int64_t size_of(const ht_model* model, const int64_t* sizes, const char* name) {
  const char* dim;
  for (int i = 0; name != NULL && (dim = ht_model_dim(model, i)) != NULL; ++i)
    if (strcmp(dim, name) == 0) return sizes[i];
  return -1;
}

int main(int argc, char** argv) {
  static ends inputs, outputs;
  static int64_t shapes[MOST * HT_MODEL_MAX_AXES];
  int64_t sizes[MOST], *next = shapes;
  int dims = 0;
  ht_error error;
  ht_pack* pack;
  ht_model* model;
  ht_model_end end;
  if (argc < 4) {
    fprintf(stderr, "usage: serve_model PACK MODEL THREADS DIM...\n");
    return 2;
  }
  if (ht_abi_version() != HT_ABI_VERSION) return 3;
  if (ht_pack_open(argv[1], atoi(argv[3]), &pack, &error) != HT_OK) return stop("open", &error);
  if (ht_model_open(pack, argv[2], &model, &error) != HT_OK) return stop("model", &error);
  for (; dims < MOST && ht_model_dim(model, dims) != NULL; ++dims) sizes[dims] = dims < argc - 4 ? atoll(argv[4 + dims]) : -1;
  if (argc - 4 != dims) {
    fprintf(stderr, "%s takes %d sizes:", argv[2], dims);
    for (int i = 0; i < dims; ++i) fprintf(stderr, " %s", ht_model_dim(model, i));
    fprintf(stderr, "\n");
    return 2;
  }
  for (int i = 0; ht_model_input(model, i, &end) == HT_OK; ++i) {
    if (i == MOST) return 2;
    for (int axis = 0; axis < end.ndim; ++axis) {
      if (end.extents[axis] < 0) end.extents[axis] = size_of(model, sizes, end.dims[axis]);
      if (end.extents[axis] < 0) {
        fprintf(stderr, "input %s, axis %d: its size is computed from others; give it by hand\n", end.name, axis);
        return 2;
      }
    }
    if (!add(&inputs, &end, end.extents)) return 3;
    fill(&inputs.tensors[i]);
  }
  /* Shapes of the outputs follow from those of the inputs; models whose sizes depend on data take ht_model_run_placed instead. */
  for (int i = 0; ht_model_output(model, i, &end) == HT_OK; ++i)
    if (i == MOST) return 2;
  if (ht_model_shapes(model, inputs.tensors, shapes, &error) != HT_OK) return stop("shapes", &error);
  for (int i = 0; ht_model_output(model, i, &end) == HT_OK; next += end.ndim, ++i)
    if (!add(&outputs, &end, next)) return 3;
  if (ht_model_run(model, inputs.tensors, outputs.tensors, &error) != HT_OK) return stop("run", &error);
  for (int i = 0; i < outputs.count; ++i) {
    ht_model_output(model, i, &end);
    printf("%s:", end.name);
    for (int axis = 0; axis < end.ndim; ++axis) printf(" %lld", (long long)outputs.shapes[i][axis]);
    printf(" sum=%.6g\n", total(&outputs.tensors[i]));
  }
  for (int i = 0; i < inputs.count; ++i) free(inputs.tensors[i].data);
  for (int i = 0; i < outputs.count; ++i) free(outputs.tensors[i].data);
  ht_model_free(model);
  ht_pack_close(pack);
  return 0;
}
