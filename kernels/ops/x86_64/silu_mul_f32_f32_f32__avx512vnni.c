/* SPDX-License-Identifier: Apache-2.0
 * y = gate / (1 + e^-gate) * up, AVX-512. */
#include "ops/x86_64/avx512.h"

nb_gated_fn nb_silu_mul_f32_f32_f32__avx512vnni;
void nb_silu_mul_f32_f32_f32__avx512vnni(float *y, const float *gate, const float *up, uint32_t n) {
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 some = nb_first16(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(some, gate + i);
        const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, nb_exp16(_mm512_xor_ps(x, sign))));
        _mm512_mask_storeu_ps(y + i, some, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(some, up + i)));
    }
}
