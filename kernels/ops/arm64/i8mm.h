/* SPDX-License-Identifier: Apache-2.0
 * SMMLA kernels: everything else is NEON. */
#ifndef NB_OPS_I8MM_H
#define NB_OPS_I8MM_H

#ifndef __ARM_FEATURE_MATMUL_INT8
#error "an int8 matrix product kernel compiled without the flags of its level"
#endif

#include "ops/arm64/neon.h"

#endif
