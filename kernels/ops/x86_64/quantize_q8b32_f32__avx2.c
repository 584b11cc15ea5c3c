/* SPDX-License-Identifier: Apache-2.0
 * Activations to int8, AVX2, one block of 32 at a time in four registers. cvtps2dq rounds to nearest even, as adding
 * 1.5 * 2^23 does; the two packs work inside 128-bit halves, so one permutation of dwords puts the bytes in order.
 * Needs: the rounding mode is the default one. */
#include "ops/x86_64/avx2.h"

nb_quantize_fn nb_quantize_q8b32_f32__avx2;
void nb_quantize_q8b32_f32__avx2(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x, uint32_t n) {
    for (uint32_t b = block0; b < block1; b++) {
        const size_t e = ((size_t)(token / a->tile) * a->blocks + b) * a->tile + token % a->tile;
        const uint32_t at = b * NB_BLOCK;
        float tail[NB_BLOCK];
        const float *from = x + at;
        if (at + NB_BLOCK > n) { /* copied: a loop would become masked loads, which QEMU 7 lets fault past the end of x */
            memset(tail, 0, sizeof tail);
            if (at < n) memcpy(tail, x + at, (n - at) * sizeof *tail);
            from = tail;
        }
        __m256 v[4];
        NB_UNROLL
        for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(from + 8 * i);
        const float m =
            nb_max8(_mm256_max_ps(_mm256_max_ps(nb_abs8(v[0]), nb_abs8(v[1])), _mm256_max_ps(nb_abs8(v[2]), nb_abs8(v[3]))));
        const __m256 inverse = _mm256_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
        __m256i q[4];
        NB_UNROLL
        for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        const __m256i bytes =
            _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])),
                                        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)(a->q + e * NB_BLOCK), bytes);
        const __m256i dwords = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        a->scale[e] = m < NB_TINY ? 0.0f : m / 127.0f;
        a->bias[e] = -64 * _mm_cvtsi128_si32(sum);
    }
}
