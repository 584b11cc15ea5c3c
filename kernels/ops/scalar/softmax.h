/* SPDX-License-Identifier: Apache-2.0
 * The middle of attention: scores of positions [p0, p1), capped if there is a cap, become e^(score - maximum). */
#ifndef NB_OPS_SOFTMAX_H
#define NB_OPS_SOFTMAX_H

#include "ops/scalar/math.h"

/* Returns the maximum; *sum gets the sum of the exponentials, position p in lane p % 16. Adding 0 makes a maximum of
 * -0 into +0: otherwise the order in which zeros of both signs are met would show in the bits. */
static inline float nb_exp_scores(float *scores, uint32_t p0, uint32_t p1, float cap, float *sum) {
    if (cap != 0)
        for (uint32_t i = 0; i < p1 - p0; i++) scores[i] = nb_softcap(scores[i], cap);
    float max = scores[0], lane[NB_LANES] = {0};
    for (uint32_t i = 1; i < p1 - p0; i++) max = scores[i] > max ? scores[i] : max;
    max = max + 0.0f;
    for (uint32_t i = 0; i < p1 - p0; i++) {
        scores[i] = nb_exp(scores[i] - max);
        lane[(p0 + i) % NB_LANES] += scores[i];
    }
    *sum = nb_fold(lane);
    return max;
}

#endif
