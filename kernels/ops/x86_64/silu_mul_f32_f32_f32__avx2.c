/* SPDX-License-Identifier: Apache-2.0
 * y = gate / (1 + e^-gate) * up, AVX2. */
#include "ops/x86_64/avx2.h"

nb_gated_fn nb_silu_mul_f32_f32_f32__avx2;
void nb_silu_mul_f32_f32_f32__avx2(float *y, const float *gate, const float *up, uint32_t n) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_loadu_ps(gate + i);
        const __m256 silu = _mm256_div_ps(x, _mm256_add_ps(one, nb_exp8(_mm256_xor_ps(x, sign))));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
    for (; i < n; i++) y[i] = nb_silu(gate[i]) * up[i];
}
