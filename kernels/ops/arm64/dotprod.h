/* SPDX-License-Identifier: Apache-2.0
 * What kernels with SDOT share: four rows x 4 k times four activations out of 16. */
#ifndef NB_OPS_DOTPROD_H
#define NB_OPS_DOTPROD_H

#ifndef __ARM_FEATURE_DOTPROD
#error "a dot product kernel compiled without the flags of its level"
#endif

#include "ops/arm64/neon.h"

/* sum[row] += four products of v's row with activations 4j..4j+3 of a; j is a constant after unrolling */
NB_INLINE int32x4_t nb_dot4(int32x4_t sum, int8x16_t v, int8x16_t a, int j) {
    switch (j) {
    case 0: return vdotq_laneq_s32(sum, v, a, 0);
    case 1: return vdotq_laneq_s32(sum, v, a, 1);
    case 2: return vdotq_laneq_s32(sum, v, a, 2);
    default: return vdotq_laneq_s32(sum, v, a, 3);
    }
}

#endif
