/* Depthwise convolutions in fp32 by vectors of 8. */
#include "conv_direct.h"
#include "conv_direct_8.h"
#include "conv_direct_fp32.h"
