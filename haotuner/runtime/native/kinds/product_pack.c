/* Copies of blocks of a factor, side by side as the programs read them. */
#include <string.h>

#include "product.h"
#include "turn.h"

void ht_product_pack(float* to, int64_t width, const float* from, int64_t down, int64_t right, int64_t rows, int64_t columns, int lanes) {
  if ((down == 1 || rows == 1) && right != 1 && width % lanes == 0) { /* a pack's vectors are no wider than the CPU's */
    for (int64_t j = 0; j < width; j += lanes) {
      const int64_t count = columns - j < lanes ? columns - j : lanes;
      ht_square(lanes, from + j * right, right, count, rows, to + j, width, lanes);
    }
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (right == 1) memcpy(to + i * width, from + i * down, (size_t)columns * sizeof(float));
    else
      for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[i * down + j * right];
    if (columns < width) memset(to + i * width + columns, 0, (size_t)(width - columns) * sizeof(float));
  }
}
