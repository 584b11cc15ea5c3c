/* SPDX-License-Identifier: Apache-2.0
 * y = gelu(gate) * up in the tanh form, SSE4.1: gelu(x) = x / (1 + e^-2u), u = 0.79788 * (x + 0.044715 * x^3). */
#include "ops/x86_64/sse41.h"

nb_gated_fn nb_gelu_mul_f32_f32_f32__sse41;
void nb_gelu_mul_f32_f32_f32__sse41(float *y, const float *gate, const float *up, uint32_t n) {
    const __m128 one = _mm_set1_ps(1.0f);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m128 x = _mm_loadu_ps(gate + i), cube = _mm_mul_ps(_mm_mul_ps(x, x), x);
        const __m128 u = _mm_mul_ps(_mm_set1_ps(0.7978845608f), _mm_add_ps(x, _mm_mul_ps(_mm_set1_ps(0.044715f), cube)));
        const __m128 gelu = _mm_div_ps(x, _mm_add_ps(one, nb_exp4(_mm_mul_ps(_mm_set1_ps(-2.0f), u))));
        _mm_storeu_ps(y + i, _mm_mul_ps(gelu, _mm_loadu_ps(up + i)));
    }
    for (; i < n; i++) y[i] = nb_gelu(gate[i]) * up[i];
}
