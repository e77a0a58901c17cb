/* Made by haotuner/spec/limits.py, which explains the numbers; change them there. */
#ifndef HT_LIMITS_H_
#define HT_LIMITS_H_

#define HT_MAX_THREADS 256
#define HT_BY_ADDRESS 1048576
#define HT_MAX_OPS 256
#define HT_MAX_AXES 12
#define HT_CELL_AXES 8
#define HT_MAX_OPERANDS 8
#define HT_MAX_EXTRA 5
#define HT_MAX_DYNAMIC 4
#define HT_MAX_RANK 32
#define HT_MAX_REGIONS 3
#define HT_MAX_PARTS 4
#define HT_MAX_TILE 512
#define HT_PARTIAL_FLOATS 8192
#define HT_PART_TERMS 256
#define HT_FOLD_LEAST 65536
#define HT_TERMS_STEP 16
#define HT_ROW_PIECES 8
#define HT_EXACT_EXTENT 4096
#define HT_EXTENT_SLOTS 5376
#define HT_SHAPE_SLOTS 5376

enum { HT_SERIAL = 0, HT_COLUMNS = 1, HT_ROWS = 2, HT_TERMS = 3 };

#endif /* HT_LIMITS_H_ */
