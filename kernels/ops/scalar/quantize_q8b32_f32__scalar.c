/* SPDX-License-Identifier: Apache-2.0
 * Activations to int8, one scale and one bias (-64 * sum, for unsigned weights) per block of 32. */
#include "ops/scalar/math.h"

nb_quantize_fn nb_quantize_q8b32_f32__scalar;
void nb_quantize_q8b32_f32__scalar(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x,
                                   uint32_t n) {
    for (uint32_t b = block0; b < block1; b++) {
        const size_t e = ((size_t)(token / a->tile) * a->blocks + b) * a->tile + token % a->tile;
        const uint32_t at = b * NB_BLOCK, count = n <= at ? 0 : n - at < NB_BLOCK ? n - at : NB_BLOCK;
        int8_t *q = a->q + e * NB_BLOCK;
        a->scale[e] = nb_to_int8(q, x + (count ? at : 0), count);
        int32_t sum = 0;
        for (uint32_t i = 0; i < count; i++) sum += q[i];
        for (uint32_t i = count; i < NB_BLOCK; i++) q[i] = 0;
        a->bias[e] = -64 * sum;
    }
}
