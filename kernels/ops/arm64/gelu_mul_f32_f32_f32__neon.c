/* SPDX-License-Identifier: Apache-2.0
 * y = gelu(gate) * up in the tanh form, NEON: gelu(x) = x / (1 + e^-2u), u = 0.79788 * (x + 0.044715 * x^3). */
#include "ops/arm64/neon.h"

nb_gated_fn nb_gelu_mul_f32_f32_f32__neon;
void nb_gelu_mul_f32_f32_f32__neon(float *y, const float *gate, const float *up, uint32_t n) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t x = vld1q_f32(gate + i), cube = vmulq_f32(vmulq_f32(x, x), x);
        const float32x4_t u = vmulq_n_f32(vaddq_f32(x, vmulq_n_f32(cube, 0.044715f)), 0.7978845608f);
        const float32x4_t gelu = vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), nb_exp4(vmulq_n_f32(u, -2.0f))));
        vst1q_f32(y + i, vmulq_f32(gelu, vld1q_f32(up + i)));
    }
    for (; i < n; i++) y[i] = nb_gelu(gate[i]) * up[i];
}
