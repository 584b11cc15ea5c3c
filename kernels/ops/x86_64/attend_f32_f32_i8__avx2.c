/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, AVX2 (contract in hal.h; plan in attend_run.h and attend_i8.h).
 * Two channels a dword, as int16: keys are turned four channels at a time and split into pairs of channels (0, 2) and (1, 3), in
 * which order the query lies too. A pair of channels of eight positions is vpmaddwd and vpaddd: for six queries and 16
 * positions 24 of them, 6 broadcasts and 2 loads do 192 multiply-adds in six cycles, twice the float rate.
 * Needs: head_dim a multiple of 8 up to NB_DEEPEST (else the scalar kernel runs). */
#include "ops/x86_64/attend_vec_avx2.h"

enum { NB_CHANNELS = 2 };
typedef __m256i nb_ivec;
NB_INLINE nb_ivec nb_i_load(const void *x) { return nb_load8(x); }
NB_INLINE nb_ivec nb_i_all(const void *x) { return nb_dword8(x); }
NB_INLINE nb_vec nb_i_float(nb_ivec x) { return _mm256_cvtepi32_ps(x); }
NB_INLINE nb_ivec nb_i_dot(nb_ivec sum, nb_ivec k, nb_ivec q) { return _mm256_add_epi32(sum, _mm256_madd_epi16(k, q)); }
NB_INLINE nb_ivec nb_i_start(const float *query, uint32_t head_dim) {
    (void)query, (void)head_dim;
    return _mm256_setzero_si256();
}

#include "ops/x86_64/attend_i8.h"

/* Four int8 in a dword as two int16 pairs */
NB_INLINE __m256i even_pairs(__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
NB_INLINE __m256i odd_pairs(__m256i x) { return _mm256_srai_epi16(x, 8); }

NB_INLINE float nb_take_query(float *to, const float *q, uint32_t n) {
    __m256 top = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) top = _mm256_max_ps(top, nb_abs8(_mm256_loadu_ps(q + i)));
    const float m = nb_max8(top);
    const __m256 inverse = _mm256_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i dwords = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(q + i), inverse));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
        const __m128i swap = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        _mm_storeu_si128((__m128i *)((int16_t *)(void *)to + i), _mm_shuffle_epi8(words, swap));
    }
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

NB_INLINE void nb_turn(int32_t (*keys)[NB_KEYS], const int8_t *const *row, uint32_t first, uint32_t head_dim) {
    for (uint32_t c = 0; c < head_dim; c += 16) {
        const int whole = c + 16 <= head_dim;
        __m256i r[4], pair[4];
        NB_UNROLL
        for (int i = 0; i < 4; i++) { /* positions i and i + 4 */
            const void *low = row[i] + c, *high = row[i + 4] + c;
            r[i] = whole ? _mm256_setr_m128i(_mm_loadu_si128((const __m128i *)low), _mm_loadu_si128((const __m128i *)high))
                         : _mm256_setr_m128i(_mm_loadl_epi64((const __m128i *)low), _mm_loadl_epi64((const __m128i *)high));
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            pair[i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            pair[2 + i] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        NB_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            if (!whole && i == 2) break;
            const __m256i lower = pair[i / 2 * 2], upper = pair[i / 2 * 2 + 1];
            const __m256i four = i % 2 ? _mm256_unpackhi_epi64(lower, upper) : _mm256_unpacklo_epi64(lower, upper);
            _mm256_storeu_si256((__m256i *)(keys[c / 2 + 2 * i] + first), even_pairs(four));
            _mm256_storeu_si256((__m256i *)(keys[c / 2 + 2 * i + 1] + first), odd_pairs(four));
        }
    }
}

nb_attend_fn nb_attend_f32_f32_i8__scalar, nb_attend_f32_f32_i8__avx2;
void nb_attend_f32_f32_i8__avx2(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8 || kv->head_dim > NB_DEEPEST) nb_attend_f32_f32_i8__scalar(kv, a);
    else nb_attend_i8(kv, a);
}
