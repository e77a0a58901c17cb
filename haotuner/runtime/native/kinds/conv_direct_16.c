/* Depthwise convolutions in fp32 by vectors of 16. */
#include "conv_direct.h"
#include "conv_direct_16.h"
#include "conv_direct_fp32.h"
