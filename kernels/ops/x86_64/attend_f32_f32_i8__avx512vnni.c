/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, AVX-512 VNNI (contract in hal.h; plan in attend_run.h and attend_i8.h).
 * Four channels a dword: vpdpbusd wants one side unsigned, so keys become key + 128 as they are turned, and a query's sums
 * start at -128 times the sum of its int8, which lies behind them. Six queries and 32 positions: 12 vpdpbusd, 6 broadcasts and 2
 * loads do 768 multiply-adds in six cycles of two pipes.
 * Needs: head_dim a multiple of 16 up to NB_DEEPEST (else the scalar kernel runs). */
#include "ops/x86_64/attend_vec_avx512.h"

enum { NB_CHANNELS = 4 };
typedef __m512i nb_ivec;
NB_INLINE nb_ivec nb_i_load(const void *x) { return nb_load16(x); }
NB_INLINE nb_ivec nb_i_all(const void *x) { return nb_dword16(x); }
NB_INLINE nb_vec nb_i_float(nb_ivec x) { return _mm512_cvtepi32_ps(x); }
NB_INLINE nb_ivec nb_i_dot(nb_ivec sum, nb_ivec k, nb_ivec q) { return _mm512_dpbusd_epi32(sum, k, q); }
NB_INLINE nb_ivec nb_i_start(const float *query, uint32_t head_dim) { return nb_dword16(query + head_dim / NB_CHANNELS); }

#include "ops/x86_64/attend_i8.h"

NB_INLINE float nb_take_query(float *to, const float *q, uint32_t n) {
    int8_t *bytes = (int8_t *)to;
    const float scale = nb_to_int8x16(bytes, q, n);
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16)
        sum = _mm512_sub_epi32(sum, _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(bytes + i))));
    const int32_t start = 128 * nb_sum16(sum);
    memcpy(to + n / NB_CHANNELS, &start, sizeof start);
    return scale;
}

NB_INLINE void nb_turn(int32_t (*keys)[NB_KEYS], const int8_t *const *row, uint32_t first, uint32_t head_dim) {
    for (uint32_t c = 0; c < head_dim; c += 16) {
        __m512i r[4], pair[4];
        NB_UNROLL
        for (int i = 0; i < 4; i++) { /* positions i, i + 4, i + 8, i + 12 */
            r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(row[i] + c)));
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(row[i + 4] + c)), 1);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(row[i + 8] + c)), 2);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(row[i + 12] + c)), 3);
            r[i] = _mm512_xor_si512(r[i], _mm512_set1_epi8(-128));
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            pair[i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            pair[2 + i] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        NB_UNROLL
        for (uint32_t i = 0; i < 4; i += 2) {
            _mm512_storeu_si512(keys[c / 4 + i] + first, _mm512_unpacklo_epi64(pair[i], pair[i + 1]));
            _mm512_storeu_si512(keys[c / 4 + i + 1] + first, _mm512_unpackhi_epi64(pair[i], pair[i + 1]));
        }
    }
}

nb_attend_fn nb_attend_f32_f32_i8__scalar, nb_attend_f32_f32_i8__avx512vnni;
void nb_attend_f32_f32_i8__avx512vnni(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 16 || kv->head_dim > NB_DEEPEST) nb_attend_f32_f32_i8__scalar(kv, a);
    else nb_attend_i8(kv, a);
}
