/* What product_skinny.c calls, by the width of a vector. */
#ifndef HT_PRODUCT_FEW_H_
#define HT_PRODUCT_FEW_H_

#include "product.h"

/* to[i * to_down + j]: row i of `other` times row j of `from`, j < count <= the width; entry few - 1 is for `few` rows of `other`. More than half
 * the width are no gain: tiles read fewer elements a product. */
typedef void (*ht_product_few_sums)(const float* from, int64_t down, int64_t count, const float* other, int64_t other_down, int64_t k, float* to,
                                    int64_t to_down);
extern const ht_product_few_sums ht_product_few_16[8], ht_product_few_8[4];

#endif /* HT_PRODUCT_FEW_H_ */
