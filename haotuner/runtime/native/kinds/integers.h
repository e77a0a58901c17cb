/* Of whole numbers that are not negative. */
#ifndef HT_INTEGERS_H
#define HT_INTEGERS_H
#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; } /* a / b, rounded up */
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
