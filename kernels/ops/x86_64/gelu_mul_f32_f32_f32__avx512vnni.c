/* SPDX-License-Identifier: Apache-2.0
 * y = gate / (1 + e^-2u) * up with u of the tanh form, AVX-512. */
#include "ops/x86_64/avx512.h"

nb_gated_fn nb_gelu_mul_f32_f32_f32__avx512vnni;
void nb_gelu_mul_f32_f32_f32__avx512vnni(float *y, const float *gate, const float *up, uint32_t n) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 some = nb_first16(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(some, gate + i);
        const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
        const __m512 u =
            _mm512_mul_ps(_mm512_set1_ps(0.7978845608f), _mm512_add_ps(x, _mm512_mul_ps(_mm512_set1_ps(0.044715f), cube)));
        const __m512 gelu = _mm512_div_ps(x, _mm512_add_ps(one, nb_exp16(_mm512_mul_ps(_mm512_set1_ps(-2.0f), u))));
        _mm512_mask_storeu_ps(y + i, some, _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(some, up + i)));
    }
}
