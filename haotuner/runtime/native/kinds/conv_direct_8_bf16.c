/* Sums of depthwise convolutions of images in bf16 by vectors of 8. */
#include "conv_direct.h"
#include "conv_direct_8.h"
#define HT_PROGRAMS ht_conv_direct_8_bf16
#define HT_X uint16_t
#define HT_LOAD_X(p) HT_BF16(p)
#define HT_INTEGER 0
#include "conv_direct_typed.h"
