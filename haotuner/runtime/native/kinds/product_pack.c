/* Copies of blocks of a factor, side by side as the programs read them. */
#include <string.h>

#include "product.h"
#include "turn.h"

/* All of a block in squares of `size`, which divides `width`; of the last rows, where a square would read past the end of a column,
 * element by element. */
#define TURN(size, attribute)                                                                                                           \
  attribute static void turn_all_##size(float* to, int64_t width, const float* from, int64_t right, int64_t rows, int64_t columns) {    \
    int64_t down = rows / size * size;                                                                                                  \
    for (int64_t j = 0; j < width; j += size) {                                                                                         \
      int64_t count = columns - j;                                                                                                      \
      if (count >= size)                                                                                                                \
        for (int64_t i = 0; i < down; i += size) turn_##size(from + j * right + i, right, size, to + i * width + j, width);             \
      else                                                                                                                              \
        for (int64_t i = 0; i < down; i += size) turn_##size(from + j * right + i, right, count, to + i * width + j, width);            \
      for (int64_t i = down; i < rows; ++i)                                                                                             \
        for (int64_t l = 0; l < size; ++l) to[i * width + j + l] = l < count ? from[(j + l) * right + i] : 0;                           \
    }                                                                                                                                   \
  }
TURN(4, )
TURN(8, __attribute__((target("avx"))))
TURN(16, __attribute__((target("avx512f"))))

void ht_product_pack(float* to, int64_t width, const float* from, int64_t down, int64_t right, int64_t rows, int64_t columns, int lanes) {
  if ((down == 1 || rows == 1) && right != 1 && width % lanes == 0) { /* a pack's vectors are no wider than the CPU's */
    (lanes >= 16 ? turn_all_16 : lanes >= 8 ? turn_all_8 : turn_all_4)(to, width, from, right, rows, columns);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (right == 1) memcpy(to + i * width, from + i * down, (size_t)columns * sizeof(float));
    else
      for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[i * down + j * right];
    if (columns < width) memset(to + i * width + columns, 0, (size_t)(width - columns) * sizeof(float));
  }
}
