/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, AVX2 + F16C (contract in hal.h; plan and count in attend_run.h).
 * Keys are turned eight positions by sixteen channels at a time: 24 shuffles, where floats would take 48.
 * Needs: head_dim a multiple of 8 from 16 to NB_DEEPEST (else the scalar kernel runs). */
#include "ops/x86_64/attend_vec_avx2.h"
#include "ops/x86_64/attend_f16.h"

NB_INLINE void nb_turn(struct nb_keys *to, const uint16_t *const *row, uint32_t half, uint32_t head_dim) {
    for (uint32_t c = 0; c < head_dim; c += 16) {
        __m256i r[8], pair[8], quad[8];
        NB_UNROLL
        for (int i = 0; i < 8; i++)
            r[i] = c + 16 <= head_dim ? nb_load8(row[i] + c)
                                      : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(row[i] + c)));
        NB_UNROLL
        for (int i = 0; i < 4; i++) { /* channels 0..3 of positions 2i and 2i + 1, then channels 4..7; 8 further above */
            pair[i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
            pair[4 + i] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
        }
        NB_UNROLL
        for (int i = 0; i < 8; i += 4) { /* channels i, i + 1 of positions 0..3 and of 4..7, then i + 2, i + 3 */
            quad[i] = _mm256_unpacklo_epi32(pair[i], pair[i + 1]);
            quad[i + 1] = _mm256_unpacklo_epi32(pair[i + 2], pair[i + 3]);
            quad[i + 2] = _mm256_unpackhi_epi32(pair[i], pair[i + 1]);
            quad[i + 3] = _mm256_unpackhi_epi32(pair[i + 2], pair[i + 3]);
        }
        NB_UNROLL
        for (uint32_t i = 0; i < 8; i += 2) {
            _mm256_store_si256((__m256i *)to->of[c / 2 + i][half], _mm256_unpacklo_epi64(quad[i], quad[i + 1]));
            _mm256_store_si256((__m256i *)to->of[c / 2 + i + 1][half], _mm256_unpackhi_epi64(quad[i], quad[i + 1]));
        }
    }
}

nb_attend_fn nb_attend_f32_f32_f16__scalar, nb_attend_f32_f32_f16__avx2;
void nb_attend_f32_f32_f16__avx2(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8 || kv->head_dim < NB_LANES || kv->head_dim > NB_DEEPEST) nb_attend_f32_f32_f16__scalar(kv, a);
    else nb_attend_f16(kv, a);
}
