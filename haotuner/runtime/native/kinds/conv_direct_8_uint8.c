/* Sums of depthwise convolutions of images in uint8 by vectors of 8. */
#include "conv_direct.h"
#include "conv_direct_8.h"
#define HT_PROGRAMS ht_conv_direct_8_uint8
#define HT_X uint8_t
#define HT_LOAD_X(p) HT_UINT8(p)
#define HT_INTEGER 1
#include "conv_direct_typed.h"
