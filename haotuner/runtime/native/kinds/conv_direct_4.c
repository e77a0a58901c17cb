/* Depthwise convolutions in fp32 by vectors of 4. */
#include "conv_direct.h"
#include "conv_direct_4.h"
#include "conv_direct_fp32.h"
