/* SPDX-License-Identifier: Apache-2.0
 * y = x / sqrt(mean(x * x) + eps) * w, AVX2: the 16 virtual lanes are two registers; a tail goes on in memory. */
#include <math.h>

#include "ops/x86_64/avx2.h"

nb_rmsnorm_fn nb_rmsnorm_f32_f32_f32__avx2;
void nb_rmsnorm_f32_f32_f32__avx2(float *y, const float *x, const float *w, uint32_t n, float eps) {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    const uint32_t whole = n / NB_LANES * NB_LANES;
    for (uint32_t i = 0; i < whole; i += NB_LANES) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        low = _mm256_add_ps(low, _mm256_mul_ps(a, a));
        high = _mm256_add_ps(high, _mm256_mul_ps(b, b));
    }
    float lane[NB_LANES];
    _mm256_storeu_ps(lane, low);
    _mm256_storeu_ps(lane + 8, high);
    for (uint32_t i = whole; i < n; i++) lane[i % NB_LANES] += x[i] * x[i];
    const float inv = 1.0f / sqrtf(nb_fold(lane) / (float)n + eps);
    const __m256 inv8 = _mm256_set1_ps(inv);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), inv8), _mm256_loadu_ps(w + i)));
    for (; i < n; i++) y[i] = x[i] * inv * w[i];
}
