/* SPDX-License-Identifier: Apache-2.0
 * Activations to int8, AVX-512, one block of 32 in two registers; vpmovdb makes bytes of the rounded dwords in order.
 * The bias, -64 * sum(q), is vpdpbusd of 64s with the bytes just made and a sum over four lanes.
 * Needs: the rounding mode is the default one. Elements past the end are masked and count as 0. */
#include "ops/x86_64/avx512.h"

nb_quantize_fn nb_quantize_q8b32_f32__avx512vnni;
void nb_quantize_q8b32_f32__avx512vnni(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x,
                                       uint32_t n) {
    for (uint32_t b = block0; b < block1; b++) {
        const size_t e = ((size_t)(token / a->tile) * a->blocks + b) * a->tile + token % a->tile;
        const size_t at = (size_t)b * NB_BLOCK, left = n > at ? n - at : 0;
        const float *from = x + (left ? at : 0), *next = from + (left > 16 ? 16 : 0);
        const __m512 low = _mm512_maskz_loadu_ps(nb_first16(left), from),
                     high = _mm512_maskz_loadu_ps(nb_first16(left > 16 ? left - 16 : 0), next);
        const float m = nb_max16(_mm512_max_ps(nb_abs16(low), nb_abs16(high)));
        const __m512 inverse = _mm512_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
        const __m128i q_low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)));
        const __m128i q_high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)));
        _mm_storeu_si128((__m128i *)(a->q + e * NB_BLOCK), q_low);
        _mm_storeu_si128((__m128i *)(a->q + e * NB_BLOCK + 16), q_high);
        __m128i sum = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(64), q_low);
        sum = _mm_dpbusd_epi32(sum, _mm_set1_epi8(64), q_high);
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        a->scale[e] = m < NB_TINY ? 0.0f : m / 127.0f;
        a->bias[e] = -_mm_cvtsi128_si32(sum);
    }
}
