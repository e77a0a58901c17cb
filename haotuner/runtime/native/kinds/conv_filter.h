/* Minimal filtering of one axis by Toom-Cook (Winograd 1980; Lavin & Gray, CVPR 2016): `outputs` of a window of `taps` from
 * points = outputs + taps - 1 products. Its points are 0, 1, -1, 2, -2, 1/2, -1/2, as many as are needed, and infinity, the last.
 *
 * With inputs d, weights g and the polynomial M(x), the product of all x - a of the points a, whose slope at a is N(a):
 *   ahead:  the coefficients of M(x) / (x - a) times d; of infinity, those of M(x)
 *   weight: g(a) / N(a);                                of infinity, the last tap
 *   back:   output j is the sum of a^j times a point's product; infinity's counts for the last output alone
 * ops/minimal_filtering.py has the matrices, and what they do to errors. */
#ifndef HT_CONV_FILTER_H_
#define HT_CONV_FILTER_H_

#include <stdint.h>

#define HT_FILTER_POINTS 8  /* of an axis at most, 3 at least */
#define HT_FILTER_OUTPUTS 6 /* of a tile: 2, 4 or 6 */

/* `count` times, from inputs `next` floats apart: vectors of `lanes` elements (16, 8 or 4), `step` floats apart, one for each point; to
 * vectors `apart` floats apart, and `each` from one time to the next. */
void ht_filter_ahead(int lanes, int points, const float* from, int64_t step, int64_t next, int64_t count, float* to, int64_t apart, int64_t each);
/* The same from products to `outputs`; `bias`, of `lanes` floats, is added to each output. */
void ht_filter_back(int lanes, int points, int outputs, const float* from, int64_t step, int64_t next, int64_t count, const float* bias, float* to,
                    int64_t apart, int64_t each);
/* The points of one window, whose taps are `step` apart. */
void ht_filter_weight(int points, int taps, const double* g, int step, double* out);

#endif /* HT_CONV_FILTER_H_ */
