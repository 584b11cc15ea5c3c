/* SPDX-License-Identifier: Apache-2.0
 * y = gate / (1 + e^-gate) * up, SSE4.1. */
#include "ops/x86_64/sse41.h"

nb_gated_fn nb_silu_mul_f32_f32_f32__sse41;
void nb_silu_mul_f32_f32_f32__sse41(float *y, const float *gate, const float *up, uint32_t n) {
    const __m128 sign = _mm_set1_ps(-0.0f), one = _mm_set1_ps(1.0f);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m128 x = _mm_loadu_ps(gate + i);
        const __m128 silu = _mm_div_ps(x, _mm_add_ps(one, nb_exp4(_mm_xor_ps(x, sign))));
        _mm_storeu_ps(y + i, _mm_mul_ps(silu, _mm_loadu_ps(up + i)));
    }
    for (; i < n; i++) y[i] = nb_silu(gate[i]) * up[i];
}
