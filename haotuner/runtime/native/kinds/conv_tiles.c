/* Calls of micro-kernels on operands that the loops of convolutions laid out. */
#include <string.h>

#include "conv.h"

int ht_conv_tiles(ht_kernel_fn fn, int64_t mr, int64_t nr, int64_t pw, const ht_conv_tile* c) {
  int64_t x_shape[2] = {c->tiles * mr, c->depth}, x_strides[2] = {c->ldx, 1};
  int64_t w_shape[3] = {c->groups * ceil_div(nr, pw), c->depth, pw}, w_strides[3] = {c->w_stride, pw, 1};
  int64_t y_shape[2] = {c->tiles * mr, c->groups * nr}, y_strides[2] = {c->ldy, 1};
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType fp32 = {kDLFloat, 32, 1};
  DLTensor tx = {(void*)c->x, cpu, 2, fp32, x_shape, x_strides, 0};
  DLTensor tw = {(void*)c->w, cpu, 3, fp32, w_shape, w_strides, 0};
  DLTensor ty = {c->y, cpu, 2, fp32, y_shape, y_strides, 0};
  int64_t depth[1] = {c->depth};
  DLTensor terms = {(void*)c->terms, cpu, 1, {kDLInt, 64, 1}, depth, NULL, 0};
  TVMFFIAny args[7], result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  args[0].type_index = args[1].type_index = args[2].type_index = kTVMFFIDLTensorPtr;
  args[0].v_ptr = &tx;
  args[1].v_ptr = &tw;
  args[2].v_ptr = &ty;
  args[3].type_index = args[4].type_index = args[5].type_index = kTVMFFIInt;
  args[3].v_int64 = c->tiles;
  args[4].v_int64 = c->groups;
  args[5].v_int64 = c->add;
  args[6].type_index = kTVMFFIDLTensorPtr;
  args[6].v_ptr = &terms;
  return fn(NULL, args, c->terms == NULL ? 6 : 7, &result);
}

int ht_conv_across(const ht_kernel* k, int lanes, ht_conv_tile c, int64_t count) {
  int64_t whole = count / k->nr, rest = count - whole * k->nr;
  c.groups = whole;
  int rc = whole > 0 ? ht_conv_tiles(k->fn, k->mr, k->nr, k->pw, &c) : 0;
  if (rc != 0 || rest == 0) return rc;
  c.w += whole * k->nr / lanes * c.w_stride;
  c.y += whole * k->nr;
  c.groups = 1;
  return k->tail != NULL && rest <= k->nt ? ht_conv_tiles(k->tail, k->mr, k->nt, k->pw, &c) : ht_conv_tiles(k->fn, k->mr, k->nr, k->pw, &c);
}

int ht_conv_down(const ht_kernel* k, ht_conv_tile c, const float* weight, int64_t stride, int64_t count, float* y, int64_t ldy) {
  c.x = weight;
  c.ldx = stride;
  c.y = y;
  c.ldy = ldy;
  c.tiles = count / k->mr;
  int64_t rest = count - c.tiles * k->mr;
  int rc = c.tiles > 0 ? ht_conv_tiles(k->fn, k->mr, k->nr, k->pw, &c) : 0;
  if (rc != 0 || rest == 0) return rc;
  c.x += c.tiles * k->mr * c.ldx;
  c.y += c.tiles * k->mr * ldy;
  c.tiles = 1;
  if (k->tail != NULL && rest == k->nt) return ht_conv_tiles(k->tail, k->nt, k->nr, k->pw, &c);
  /* A whole tile into scratch memory: what is beyond the features that there are is dropped. */
  float scratch[HT_MAX_TILE];
  int64_t groups = c.groups;
  c.groups = 1;
  for (int64_t g = 0; g < groups && rc == 0; ++g, c.w += c.w_stride) {
    float* to = c.y;
    c.y = scratch;
    c.ldy = k->nr;
    for (int64_t i = 0; i < rest && c.add; ++i) memcpy(scratch + i * k->nr, to + i * ldy + g * k->nr, (size_t)k->nr * sizeof *to);
    for (int64_t i = rest * k->nr; i < k->mr * k->nr && c.add; ++i) scratch[i] = 0;
    rc = ht_conv_tiles(k->fn, k->mr, k->nr, k->pw, &c);
    for (int64_t i = 0; i < rest; ++i) memcpy(to + i * ldy + g * k->nr, scratch + i * k->nr, (size_t)k->nr * sizeof *to);
    c.y = to;
  }
  return rc;
}
