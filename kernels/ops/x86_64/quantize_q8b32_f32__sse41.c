/* SPDX-License-Identifier: Apache-2.0
 * Activations to int8, SSE4.1, one block of 32 at a time in eight registers; the packs put the bytes in order by
 * themselves. The sum of the bytes comes from psadbw of q + 128. Needs: the rounding mode is the default one. */
#include "ops/x86_64/sse41.h"

nb_quantize_fn nb_quantize_q8b32_f32__sse41;
void nb_quantize_q8b32_f32__sse41(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x,
                                  uint32_t n) {
    for (uint32_t b = block0; b < block1; b++) {
        const size_t e = ((size_t)(token / a->tile) * a->blocks + b) * a->tile + token % a->tile;
        const uint32_t at = b * NB_BLOCK;
        float tail[NB_BLOCK];
        const float *from = tail;
        if (at + NB_BLOCK <= n) {
            from = x + at;
        } else {
            for (uint32_t i = 0; i < NB_BLOCK; i++) tail[i] = at + i < n ? x[at + i] : 0.0f;
        }
        __m128 top = _mm_setzero_ps();
        NB_UNROLL
        for (int i = 0; i < 8; i++) top = _mm_max_ps(top, nb_abs4(_mm_loadu_ps(from + 4 * i)));
        const float m = nb_max4(top);
        const __m128 inverse = _mm_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
        __m128i sums = _mm_setzero_si128();
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            const __m128i q = _mm_packs_epi16(nb_round8(from + 16 * i, inverse), nb_round8(from + 16 * i + 8, inverse));
            nb_store4(a->q + e * NB_BLOCK + 16 * i, q);
            sums = _mm_add_epi32(sums, _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128()));
        }
        a->scale[e] = m < NB_TINY ? 0.0f : m / 127.0f;
        a->bias[e] = -64 * (_mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - NB_BLOCK * 128);
    }
}
