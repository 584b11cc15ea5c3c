/* SPDX-License-Identifier: Apache-2.0
 * y = gate / (1 + e^-gate) * up, NEON. */
#include "ops/arm64/neon.h"

nb_gated_fn nb_silu_mul_f32_f32_f32__neon;
void nb_silu_mul_f32_f32_f32__neon(float *y, const float *gate, const float *up, uint32_t n) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t x = vld1q_f32(gate + i);
        const float32x4_t silu = vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), nb_exp4(vnegq_f32(x))));
        vst1q_f32(y + i, vmulq_f32(silu, vld1q_f32(up + i)));
    }
    for (; i < n; i++) y[i] = nb_silu(gate[i]) * up[i];
}
