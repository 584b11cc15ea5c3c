/* SPDX-License-Identifier: Apache-2.0
 * Rotates the pairs (i, i + rot/2) of each head by the angles whose cosines and sines are given. */
#include "ops/scalar/math.h"

nb_rope_fn nb_rope_f32_f32__scalar;
void nb_rope_f32_f32__scalar(float *x, uint32_t heads, uint32_t head_dim, uint32_t rot, const float *cos, const float *sin) {
    const uint32_t half = rot / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (uint32_t i = 0; i < half; i++) {
            const float x1 = x[i], x2 = x[i + half];
            x[i] = x1 * cos[i] - x2 * sin[i];
            x[i + half] = x2 * cos[i] + x1 * sin[i];
        }
}
