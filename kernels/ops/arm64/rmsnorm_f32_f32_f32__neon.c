/* SPDX-License-Identifier: Apache-2.0
 * y = x / sqrt(mean(x * x) + eps) * w, NEON: the 16 virtual lanes are four registers; a tail goes on in memory. */
#include "ops/arm64/neon.h"

#include <math.h>

nb_rmsnorm_fn nb_rmsnorm_f32_f32_f32__neon;
void nb_rmsnorm_f32_f32_f32__neon(float *y, const float *x, const float *w, uint32_t n, float eps) {
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    const uint32_t whole = n / NB_LANES * NB_LANES;
    for (uint32_t i = 0; i < whole; i += NB_LANES) {
        NB_UNROLL
        for (uint32_t v = 0; v < 4; v++) {
            const float32x4_t a = vld1q_f32(x + i + 4 * v);
            sum[v] = vaddq_f32(sum[v], vmulq_f32(a, a));
        }
    }
    float lane[NB_LANES];
    for (int v = 0; v < 4; v++) vst1q_f32(lane + 4 * v, sum[v]);
    for (uint32_t i = whole; i < n; i++) lane[i % NB_LANES] += x[i] * x[i];
    const float inv = 1.0f / sqrtf(nb_fold(lane) / (float)n + eps);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), inv), vld1q_f32(w + i)));
    for (; i < n; i++) y[i] = x[i] * inv * w[i];
}
