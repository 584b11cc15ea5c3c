/* SPDX-License-Identifier: Apache-2.0
 * Rotates the pairs (i, i + rot/2) of each head, AVX-512, sixteen pairs at a time. */
#include "ops/x86_64/avx512.h"

nb_rope_fn nb_rope_f32_f32__avx512vnni;
void nb_rope_f32_f32__avx512vnni(float *x, uint32_t heads, uint32_t head_dim, uint32_t rot, const float *cos, const float *sin) {
    const uint32_t half = rot / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (uint32_t i = 0; i < half; i += 16) {
            const __mmask16 some = nb_first16(half - i);
            const __m512 c = _mm512_maskz_loadu_ps(some, cos + i), s = _mm512_maskz_loadu_ps(some, sin + i);
            const __m512 x1 = _mm512_maskz_loadu_ps(some, x + i), x2 = _mm512_maskz_loadu_ps(some, x + half + i);
            _mm512_mask_storeu_ps(x + i, some, _mm512_sub_ps(_mm512_mul_ps(x1, c), _mm512_mul_ps(x2, s)));
            _mm512_mask_storeu_ps(x + half + i, some, _mm512_add_ps(_mm512_mul_ps(x2, c), _mm512_mul_ps(x1, s)));
        }
}
