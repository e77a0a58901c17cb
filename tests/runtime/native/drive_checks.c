/* check.c alone: ht_fold and ht_contiguous against what they promise, over random tensors, hostile ones among them. Prints "right". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ht.h"

#define CASES 400000
#define RANKS 4

static uint64_t state = 88172645463325252u;
static uint64_t draw(uint64_t limit) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (state >> 11) % limit;
}

static const int64_t extents_drawn[] = {0, 1, 1, 1, 2, 2, 3, 3, 5, 7, HT_EXTENT_LIMIT / 2, HT_EXTENT_LIMIT, HT_EXTENT_LIMIT + (int64_t)1, -1};
static const int64_t strides_drawn[] = {0, 1, -1, 2, 7, -7, HT_STRIDE_LIMIT, HT_STRIDE_LIMIT + (int64_t)1, -HT_STRIDE_LIMIT, -HT_STRIDE_LIMIT - (int64_t)1,
                                        (int64_t)1 << 31, (int64_t)1 << 40, -((int64_t)1 << 40), (int64_t)1 << 62, -((int64_t)1 << 62), INT64_MAX, INT64_MIN};
#define ONE_OF(list) list[draw(sizeof list / sizeof *list)]

static int contiguous(const DLTensor* t) {
  int64_t run = 1;
  if (t->strides == NULL) return 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    if (t->shape[i] != 1 && t->strides[i] != run) return 0;
    run *= t->shape[i];
  }
  return 1;
}

/* 1: taken, with this view; 0: refused; -1: either will do. */
static int promised(const DLTensor* t, int rank, const int64_t* expected, ht_view* view) {
  const int folded = t->ndim - rank + 1;
  __int128 rows = 1, elements = 1, run = 1, stride = 0;
  int over = 0, empty = 0, found = 0;
  if (folded < 0 || (rank == 1 && folded != 1)) return 0;
  for (int i = 0; i < t->ndim; ++i)
    if (t->shape[i] < 0 || t->shape[i] > HT_EXTENT_LIMIT) return 0;
  for (int i = 0; i < folded; ++i) rows *= t->shape[i], over |= rows > HT_EXTENT_LIMIT;
  if (over) return rows == 0 ? -1 : 0;
  view->extents[0] = (int64_t)rows;
  for (int i = 1; i < rank; ++i) view->extents[i] = t->shape[t->ndim - rank + i];
  for (int i = rank - 1; i >= 0; --i) {
    if (expected[i] != 0 && view->extents[i] != expected[i]) return 0;
    view->strides[i] = (int64_t)elements;
    elements *= view->extents[i];
    empty |= view->extents[i] == 0;
  }
  if (empty) return 1;
  if (elements > HT_ELEMENTS_LIMIT) return 0;
  if (t->strides == NULL) return 1;
  if (t->shape[t->ndim - 1] > 1 && t->strides[t->ndim - 1] != 1) return 0;
  for (int i = 1; i < rank - 1; ++i)
    if (view->extents[i] > 1) view->strides[i] = t->strides[t->ndim - rank + i];
  for (int i = folded - 1; i >= 0; --i) {
    if (t->shape[i] == 1) continue;
    if (found && t->strides[i] != stride * run) return 0;
    if (!found) stride = t->strides[i];
    found = 1, run *= t->shape[i];
  }
  if (found) view->strides[0] = (int64_t)stride;
  if (rank == 2 && (view->strides[0] > HT_STRIDE_LIMIT || view->strides[0] < -HT_STRIDE_LIMIT)) return 0;
  for (int i = 0; i < rank; ++i) {
    const __int128 span = (__int128)view->strides[i] * (view->extents[i] - 1);
    if (span > HT_ELEMENTS_LIMIT || span < -HT_ELEMENTS_LIMIT) return 0;
  }
  return 1;
}

static void tell(const DLTensor* t, int rank, const int64_t* expected, const char* what) {
  fprintf(stderr, "%s: rank %d of", what, rank);
  for (int i = 0; i < t->ndim; ++i) fprintf(stderr, " %lld/%lld", (long long)t->shape[i], (long long)(t->strides == NULL ? -99 : t->strides[i]));
  fprintf(stderr, ", expected");
  for (int i = 0; i < rank; ++i) fprintf(stderr, " %lld", (long long)expected[i]);
  fprintf(stderr, "\n");
  exit(1);
}

int main(void) {
  int64_t two[2] = {2, 3}, last[2] = {0, 4}, first[2] = {5, 0};
  const DLTensor plain = {(void*)64, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, two, NULL, 0};
  ht_error said;
  ht_view unused;
  if (ht_fold("x", &plain, 2, last, &unused, &said) == 0 || strcmp(said.text, "x has last extent 3; expected 4") != 0) tell(&plain, 2, last, said.text);
  if (ht_fold("x", &plain, 2, first, &unused, &said) == 0 || strcmp(said.text, "x has extent 2 in axis 0; expected 5") != 0) tell(&plain, 2, first, said.text);
  int taken = 0;
  for (int at = 0; at < CASES; ++at) {
    const int ndim = 1 + (int)draw(RANKS), rank = 1 + (int)draw(3), small = draw(3) != 0;
    /* of their exact sizes, so that a sanitizer sees one element too far */
    int64_t *shape = malloc((size_t)ndim * 8), *strides = draw(4) == 0 ? NULL : malloc((size_t)ndim * 8), *expected = malloc((size_t)rank * 8);
    /* in the middle of the addresses: any stride that the limits let through stays inside of them */
    DLTensor t = {(void*)(UINT64_C(1) << 62), {kDLCPU, 0}, ndim, {kDLFloat, 32, 1}, shape, strides, 0};
    ht_view view, wanted;
    ht_error error = {NULL, ""};
    for (int i = 0; i < ndim; ++i) shape[i] = small ? 1 + (int64_t)draw(3) : ONE_OF(extents_drawn);
    uint64_t run = 1;
    for (int i = ndim - 1; i >= 0 && strides != NULL; --i) strides[i] = (int64_t)run, run *= (uint64_t)shape[i];
    if (strides != NULL && draw(2) == 0) strides[draw((uint64_t)ndim)] = ONE_OF(strides_drawn);
    if (strides != NULL && ndim > 1 && draw(4) == 0) { /* rows further apart, evenly */
      const int64_t apart = 2 + (int64_t)draw(3);
      for (int i = 0; i < ndim - 1; ++i) strides[i] = (int64_t)((uint64_t)strides[i] * (uint64_t)apart);
    }
    for (int i = 0; i < rank; ++i) {
      const int axis = ndim - rank + i;
      expected[i] = draw(3) == 0 || axis < 0 ? 0 : shape[axis] > 0 ? shape[axis] + (draw(8) == 0) : 0;
      if (i == 0 && ndim > rank && draw(4) != 0) expected[i] = 0; /* rows of several axes */
    }
    if (small && ht_contiguous(&t) != contiguous(&t)) tell(&t, rank, expected, "contiguous");
    const int promise = promised(&t, rank, expected, &wanted), found = ht_fold("x", &t, rank, expected, &view, &error);
    if (promise >= 0 && (found == 0) != promise) tell(&t, rank, expected, found == 0 ? "taken" : error.text);
    if (found != 0 && (error.kind == NULL || error.text[0] == 0)) tell(&t, rank, expected, "no words");
    if (found == 0 && promise == 1) {
      ++taken;
      int empty = 0;
      for (int i = 0; i < rank; ++i) empty |= view.extents[i] == 0;
      if (memcmp(view.extents, wanted.extents, (size_t)rank * 8) != 0 || (!empty && memcmp(view.strides, wanted.strides, (size_t)rank * 8) != 0))
        tell(&t, rank, expected, "another view");
    }
    free(shape), free(strides), free(expected);
  }
  if (taken < CASES / 20) return fprintf(stderr, "only %d were taken\n", taken), 1;
  printf("right\n");
  return 0;
}
