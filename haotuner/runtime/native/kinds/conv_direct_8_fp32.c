/* Sums of depthwise convolutions of images in fp32 by vectors of 8, whose results have another type. */
#include "conv_direct.h"
#include "conv_direct_8.h"
#define HT_PROGRAMS ht_conv_direct_8_fp32
#define HT_X float
#define HT_LOAD_X(p) HT_LOAD(p)
#define HT_INTEGER 0
#include "conv_direct_typed.h"
