/* What a call brings beside, added while the output is in cache. Every element is computed as one of a vector, so that its bits do not
 * depend on where rows were cut. */
#include <string.h>

#include "epilogue.h"
#include "product.h"

typedef float some __attribute__((vector_size(64), aligned(4), may_alias));
#define SOME 16

/* The vectors are taken apart where the CPU's are shorter. */
static inline __attribute__((always_inline)) void finish(float* y, int64_t y_down, int64_t rows, int64_t columns,
                                                         const ht_product_beside* beside) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = y + i * y_down;
    const float* mask = beside->mask == NULL ? NULL : beside->mask + i * beside->mask_down;
    for (int64_t j = 0; j < columns; j += SOME) {
      int64_t count = columns - j < SOME ? columns - j : SOME;
      some value = {0}, bias = {0}, more = {0};
      if (count == SOME) value = *(const some*)(row + j);
      else memcpy(&value, row + j, (size_t)count * sizeof(float));
      if (beside->bias != NULL) {
        if (count == SOME && beside->bias_right == 1) bias = *(const some*)(beside->bias + j);
        else
          for (int64_t l = 0; l < count; ++l) bias[l] = beside->bias[(j + l) * beside->bias_right];
      }
      if (mask != NULL) {
        if (count == SOME && beside->mask_right == 1) more = *(const some*)(mask + j);
        else
          for (int64_t l = 0; l < count; ++l) more[l] = mask[(j + l) * beside->mask_right];
      }
      if (beside->scale != NULL) value = value * *beside->scale;
      __asm__("" : "+m"(value)); /* a rounding of its own, whether or not the CPU can multiply and add at once */
      if (beside->bias != NULL) value = value + bias;
      if (mask != NULL) value = value + more;
      if (count == SOME) *(some*)(row + j) = value;
      else memcpy(row + j, &value, (size_t)count * sizeof(float));
    }
  }
}

static void finish_any(float* y, int64_t y_down, int64_t rows, int64_t columns, const ht_product_beside* beside) {
  finish(y, y_down, rows, columns, beside);
}

__attribute__((target("avx2"))) static void finish_8(float* y, int64_t y_down, int64_t rows, int64_t columns,
                                                     const ht_product_beside* beside) {
  finish(y, y_down, rows, columns, beside);
}

__attribute__((target("avx512f"))) static void finish_16(float* y, int64_t y_down, int64_t rows, int64_t columns,
                                                         const ht_product_beside* beside) {
  finish(y, y_down, rows, columns, beside);
}

int ht_product_after(float* y, int64_t y_down, int64_t rows, int64_t columns, const ht_product_beside* beside, const ht_product* product) {
  const int lanes = product->lanes;
  if (beside->scale != NULL || beside->bias != NULL || beside->mask != NULL)
    (lanes >= 16 ? finish_16 : lanes >= 8 ? finish_8 : finish_any)(y, y_down, rows, columns, beside);
  return product->epilogue == NULL ? 0 : ht_epilogue_run(product->epilogue, lanes, y, y_down, NULL, 0, 0, 0, rows, columns);
}
