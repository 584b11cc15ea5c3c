/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as int8 with one scale each, AVX2; cvtps2dq rounds to nearest even.
 * Needs: the rounding mode is the default one. Channels past the last multiple of 8 go the way of math.h. */
#include "ops/x86_64/avx2.h"

NB_INLINE float bytes(int8_t *q, const float *x, uint32_t n) {
    __m256 top = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) top = _mm256_max_ps(top, nb_abs8(_mm256_loadu_ps(x + i)));
    float m = nb_max8(top);
    for (; i < n; i++) m = nb_abs(x[i]) > m ? nb_abs(x[i]) : m;
    const float inverse = m < NB_TINY ? 0.0f : 127.0f / m;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m256i dwords = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
        _mm_storel_epi64((__m128i *)(q + i), _mm_packs_epi16(words, words));
    }
    for (; i < n; i++) q[i] = (int8_t)nb_rne(x[i] * inverse);
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

nb_kv_store_fn nb_kv_store_i8_f32__avx2;
void nb_kv_store_i8_f32__avx2(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    kv->k_scale[pos] = bytes((int8_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    kv->v_scale[pos] = bytes((int8_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
