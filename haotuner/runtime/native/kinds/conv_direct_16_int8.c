/* Sums of depthwise convolutions of images in int8 by vectors of 16. */
#include "conv_direct.h"
#include "conv_direct_16.h"
#define HT_PROGRAMS ht_conv_direct_16_int8
#define HT_X int8_t
#define HT_LOAD_X(p) HT_INT8(p)
#define HT_INTEGER 1
#include "conv_direct_typed.h"
