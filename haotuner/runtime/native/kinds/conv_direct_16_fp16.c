/* Sums of depthwise convolutions of images in fp16 by vectors of 16. */
#include "conv_direct.h"
#include "conv_direct_16.h"
#define HT_PROGRAMS ht_conv_direct_16_fp16
#define HT_X uint16_t
#define HT_LOAD_X(p) HT_FP16(p)
#define HT_INTEGER 0
#include "conv_direct_typed.h"
