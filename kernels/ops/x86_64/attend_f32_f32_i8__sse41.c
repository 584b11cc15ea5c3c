/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, SSE4.1 (contract in hal.h).
 * Scores are exact integers: keys widen to int16 once for all heads and meet the query, kept as int16 where the output
 * will be, in pmaddwd. The query's scale waits in sum[].
 * Needs: head_dim a multiple of 8 (else the scalar kernel runs). */
#include "ops/x86_64/attend_sse41.h"

/* The query of one head as int16, and its scale. */
NB_INLINE float widen(int16_t *q16, const float *q, uint32_t n) {
    __m128 top = _mm_setzero_ps();
    for (uint32_t i = 0; i < n; i += 4) top = _mm_max_ps(top, nb_abs4(_mm_loadu_ps(q + i)));
    const float m = nb_max4(top);
    const __m128 inverse = _mm_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
    for (uint32_t i = 0; i < n; i += 8) nb_store4(q16 + i, nb_round8(q + i, inverse));
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

/* q: int16 at the start of each head's output */
NB_INLINE void dots(int32_t to[4], const float *q, const int8_t *k, uint32_t head_dim, int heads) {
    __m128i acc[4];
    NB_UNROLL
    for (int h = 0; h < 4; h++) acc[h] = _mm_setzero_si128();
    for (uint32_t i = 0; i < head_dim; i += 8) {
        const __m128i k16 = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(k + i)));
        NB_UNROLL
        for (int h = 0; h < heads; h++) {
            const int16_t *q16 = (const int16_t *)(const void *)(q + (size_t)h * head_dim) + i;
            acc[h] = _mm_add_epi32(acc[h], _mm_madd_epi16(k16, nb_load4(q16)));
        }
    }
    nb_store4(to, _mm_hadd_epi32(_mm_hadd_epi32(acc[0], acc[1]), _mm_hadd_epi32(acc[2], acc[3])));
}

NB_INLINE void attend(const float *q, const struct nb_kv *kv, uint32_t p0, uint32_t p1, float scale, float cap, float *scores,
                      float *max, float *sum, float *out, int heads) {
    const size_t n = kv->head_dim;
    const int8_t *k = (const int8_t *)kv->k + p0 * n, *v = (const int8_t *)kv->v + p0 * n;
    for (int h = 0; h < heads; h++) sum[h] = widen((int16_t *)(void *)(out + (size_t)h * n), q + (size_t)h * n, kv->head_dim);
    for (uint32_t p = 0; p < p1 - p0; p++) {
        int32_t dot[4];
        dots(dot, out, k + p * n, kv->head_dim, heads);
        NB_UNROLL
        for (int h = 0; h < heads; h++) scores[h * NB_RANGE + (int)p] = (float)dot[h] * (sum[h] * kv->k_scale[p0 + p] * scale);
    }
    for (int h = 0; h < heads; h++) {
        float *weight = scores + h * NB_RANGE;
        max[h] = nb_exp_scores4(weight, p0, p1, cap, &sum[h]);
        for (uint32_t p = 0; p < p1 - p0; p++) weight[p] *= kv->v_scale[p0 + p];
    }
    nb_weigh(out, scores, v, p1 - p0, kv->head_dim, NB_KV_I8, heads);
}

nb_attend_fn nb_attend_f32_f32_i8__scalar, nb_attend_f32_f32_i8__sse41;
void nb_attend_f32_f32_i8__sse41(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8) {
        nb_attend_f32_f32_i8__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
