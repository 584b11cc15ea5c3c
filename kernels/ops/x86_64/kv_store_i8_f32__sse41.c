/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as int8 with one scale each, SSE4.1; cvtps2dq rounds to nearest even.
 * Needs: the rounding mode is the default one. Channels past the last multiple of 8 go the way of math.h. */
#include "ops/x86_64/sse41.h"

NB_INLINE float bytes(int8_t *q, const float *x, uint32_t n) {
    __m128 top = _mm_setzero_ps();
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) top = _mm_max_ps(top, nb_abs4(_mm_loadu_ps(x + i)));
    float m = nb_max4(top);
    for (; i < n; i++) m = nb_abs(x[i]) > m ? nb_abs(x[i]) : m;
    const float inverse = m < NB_TINY ? 0.0f : 127.0f / m;
    for (i = 0; i + 8 <= n; i += 8) {
        const __m128i words = nb_round8(x + i, _mm_set1_ps(inverse));
        _mm_storel_epi64((__m128i *)(q + i), _mm_packs_epi16(words, words));
    }
    for (; i < n; i++) q[i] = (int8_t)nb_rne(x[i] * inverse);
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

nb_kv_store_fn nb_kv_store_i8_f32__sse41;
void nb_kv_store_i8_f32__sse41(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    kv->k_scale[pos] = bytes((int8_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    kv->v_scale[pos] = bytes((int8_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
