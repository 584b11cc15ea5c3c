/* SPDX-License-Identifier: Apache-2.0
 * y = gelu(gate) * up in the tanh form, AVX2: gelu(x) = x / (1 + e^-2u), u = 0.79788 * (x + 0.044715 * x^3). */
#include "ops/x86_64/avx2.h"

nb_gated_fn nb_gelu_mul_f32_f32_f32__avx2;
void nb_gelu_mul_f32_f32_f32__avx2(float *y, const float *gate, const float *up, uint32_t n) {
    const __m256 one = _mm256_set1_ps(1.0f);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_loadu_ps(gate + i), cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
        const __m256 u =
            _mm256_mul_ps(_mm256_set1_ps(0.7978845608f), _mm256_add_ps(x, _mm256_mul_ps(_mm256_set1_ps(0.044715f), cube)));
        const __m256 gelu = _mm256_div_ps(x, _mm256_add_ps(one, nb_exp8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), u))));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(gelu, _mm256_loadu_ps(up + i)));
    }
    for (; i < n; i++) y[i] = nb_gelu(gate[i]) * up[i];
}
