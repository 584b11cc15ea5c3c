/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, AVX-512 (contract in hal.h; plan and count in attend_run.h).
 * Keys are turned sixteen positions by sixteen channels at a time: 24 shuffles in 128-bit parts, 8 that put the parts in order.
 * Needs: head_dim a multiple of 16 up to NB_DEEPEST (else the scalar kernel runs). */
#include "ops/x86_64/attend_vec_avx512.h"
#include "ops/x86_64/attend_f16.h"

NB_INLINE void nb_turn(struct nb_keys *to, const uint16_t *const *row, uint32_t half, uint32_t head_dim) {
    for (uint32_t c = 0; c < head_dim; c += 16) {
        __m512i r[8], pair[8], quad[8];
        NB_UNROLL
        for (int i = 0; i < 8; i++) /* positions i and i + 8 */
            r[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(row[i] + c))),
                                      _mm256_loadu_si256((const __m256i *)(row[i + 8] + c)), 1);
        NB_UNROLL
        for (int i = 0; i < 4; i++) { /* channels 0..3 of positions 2i and 2i + 1, then channels 4..7 */
            pair[i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
            pair[4 + i] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
        }
        NB_UNROLL
        for (int i = 0; i < 8; i += 4) { /* channels i, i + 1 of positions 0..3 and of 4..7, then i + 2, i + 3 */
            quad[i] = _mm512_unpacklo_epi32(pair[i], pair[i + 1]);
            quad[i + 1] = _mm512_unpacklo_epi32(pair[i + 2], pair[i + 3]);
            quad[i + 2] = _mm512_unpackhi_epi32(pair[i], pair[i + 1]);
            quad[i + 3] = _mm512_unpackhi_epi32(pair[i + 2], pair[i + 3]);
        }
        NB_UNROLL
        for (uint32_t i = 0; i < 8; i += 2) { /* parts: channel, channel + 8, again for positions from 8 on */
            const __m512i even = _mm512_unpacklo_epi64(quad[i], quad[i + 1]), odd = _mm512_unpackhi_epi64(quad[i], quad[i + 1]);
            _mm512_storeu_si512(to->of[c / 2 + i][half], _mm512_shuffle_i32x4(even, even, 0xd8));
            _mm512_storeu_si512(to->of[c / 2 + i + 1][half], _mm512_shuffle_i32x4(odd, odd, 0xd8));
        }
    }
}

nb_attend_fn nb_attend_f32_f32_f16__scalar, nb_attend_f32_f32_f16__avx512vnni;
void nb_attend_f32_f32_f16__avx512vnni(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 16 || kv->head_dim > NB_DEEPEST) nb_attend_f32_f32_f16__scalar(kv, a);
    else nb_attend_f16(kv, a);
}
