/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, AVX-VNNI (contract in hal.h; plan in attend_run.h and attend_i8.h).
 * Four channels a dword: vpdpbusd wants one side unsigned, so keys become key + 128 as they are turned, and a query's sums
 * start at -128 times the sum of its int8, which lies behind them. Six queries and 16 positions: 12 vpdpbusd, 6 broadcasts and 2
 * loads do 384 multiply-adds, 20 instructions for what AVX2 does in 2 * (24 + 8) = 64.
 * Needs: head_dim a multiple of 8 up to NB_DEEPEST (else the scalar kernel runs). */
#include "ops/x86_64/avxvnni.h"
#include "ops/x86_64/attend_vec_avx2.h"

enum { NB_CHANNELS = 4 };
typedef __m256i nb_ivec;
NB_INLINE nb_ivec nb_i_load(const void *x) { return nb_load8(x); }
NB_INLINE nb_ivec nb_i_all(const void *x) { return nb_dword8(x); }
NB_INLINE nb_vec nb_i_float(nb_ivec x) { return _mm256_cvtepi32_ps(x); }
NB_INLINE nb_ivec nb_i_dot(nb_ivec sum, nb_ivec k, nb_ivec q) { return nb_dot8(sum, k, q); }
NB_INLINE nb_ivec nb_i_start(const float *query, uint32_t head_dim) { return nb_dword8(query + head_dim / NB_CHANNELS); }

#include "ops/x86_64/attend_i8.h"

NB_INLINE float nb_take_query(float *to, const float *q, uint32_t n) {
    __m256 top = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) top = _mm256_max_ps(top, nb_abs8(_mm256_loadu_ps(q + i)));
    const float m = nb_max8(top);
    const __m256 inverse = _mm256_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
    __m256i sums = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i dwords = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(q + i), inverse));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
        _mm_storel_epi64((__m128i *)((int8_t *)to + i), _mm_packs_epi16(words, words));
        sums = _mm256_add_epi32(sums, dwords);
    }
    int32_t each[8], start = 0;
    _mm256_storeu_si256((__m256i *)each, sums);
    for (int i = 0; i < 8; i++) start -= 128 * each[i];
    memcpy(to + n / NB_CHANNELS, &start, sizeof start);
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
            r[i] = _mm256_xor_si256(r[i], _mm256_set1_epi8(-128));
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            pair[i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            pair[2 + i] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        NB_UNROLL
        for (uint32_t i = 0; i < 4; i += 2) {
            if (!whole && i == 2) break;
            nb_store8(keys[c / 4 + i] + first, _mm256_unpacklo_epi64(pair[i], pair[i + 1]));
            nb_store8(keys[c / 4 + i + 1] + first, _mm256_unpackhi_epi64(pair[i], pair[i + 1]));
        }
    }
}

nb_attend_fn nb_attend_f32_f32_i8__scalar, nb_attend_f32_f32_i8__avxvnni;
void nb_attend_f32_f32_i8__avxvnni(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8 || kv->head_dim > NB_DEEPEST) nb_attend_f32_f32_i8__scalar(kv, a);
    else nb_attend_i8(kv, a);
}
