/* SPDX-License-Identifier: Apache-2.0
 * Rotates the pairs (i, i + rot/2) of each head, NEON, four pairs at a time. */
#include "ops/arm64/neon.h"

nb_rope_fn nb_rope_f32_f32__neon;
void nb_rope_f32_f32__neon(float *x, uint32_t heads, uint32_t head_dim, uint32_t rot, const float *cos, const float *sin) {
    const uint32_t half = rot / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        uint32_t i = 0;
        for (; i + 4 <= half; i += 4) {
            const float32x4_t c = vld1q_f32(cos + i), s = vld1q_f32(sin + i);
            const float32x4_t x1 = vld1q_f32(x + i), x2 = vld1q_f32(x + half + i);
            vst1q_f32(x + i, vsubq_f32(vmulq_f32(x1, c), vmulq_f32(x2, s)));
            vst1q_f32(x + half + i, vaddq_f32(vmulq_f32(x2, c), vmulq_f32(x1, s)));
        }
        for (; i < half; i++) {
            const float x1 = x[i], x2 = x[i + half];
            x[i] = x1 * cos[i] - x2 * sin[i];
            x[i + half] = x2 * cos[i] + x1 * sin[i];
        }
    }
}
