/* SPDX-License-Identifier: Apache-2.0
 * y = x / sqrt(mean(x * x) + eps) * w, SSE4.1: the 16 virtual lanes are four registers; a tail goes on in memory. */
#include <math.h>

#include "ops/x86_64/sse41.h"

nb_rmsnorm_fn nb_rmsnorm_f32_f32_f32__sse41;
void nb_rmsnorm_f32_f32_f32__sse41(float *y, const float *x, const float *w, uint32_t n, float eps) {
    __m128 sum[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
    const uint32_t whole = n / NB_LANES * NB_LANES;
    for (uint32_t i = 0; i < whole; i += NB_LANES) {
        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m128 a = _mm_loadu_ps(x + i + 4 * j);
            sum[j] = _mm_add_ps(sum[j], _mm_mul_ps(a, a));
        }
    }
    float lane[NB_LANES];
    for (int j = 0; j < 4; j++) _mm_storeu_ps(lane + 4 * j, sum[j]);
    for (uint32_t i = whole; i < n; i++) lane[i % NB_LANES] += x[i] * x[i];
    const float inv = 1.0f / sqrtf(nb_fold(lane) / (float)n + eps);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        _mm_storeu_ps(y + i, _mm_mul_ps(_mm_mul_ps(_mm_loadu_ps(x + i), _mm_set1_ps(inv)), _mm_loadu_ps(w + i)));
    for (; i < n; i++) y[i] = x[i] * inv * w[i];
}
