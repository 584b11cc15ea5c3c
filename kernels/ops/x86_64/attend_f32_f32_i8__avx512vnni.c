/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, AVX-512 VNNI (contract in hal.h).
 * Scores are exact integers: keys widen to int16 once for all heads and meet the query, kept as int16 where the output
 * will be, in vpdpwssd, which is signed on both sides. The query's scale waits in sum[].
 * Needs: head_dim a multiple of 16 (else the scalar kernel runs). */
#include "ops/x86_64/attend_avx512.h"

/* The query of one head as int16, and its scale. */
NB_INLINE float widen(int16_t *q16, const float *q, uint32_t n) {
    __m512 top = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) top = _mm512_max_ps(top, nb_abs16(_mm512_loadu_ps(q + i)));
    const float m = nb_max16(top);
    const __m512 inverse = _mm512_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
    for (uint32_t i = 0; i < n; i += 16) {
        const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q + i), inverse)));
        _mm256_storeu_si256((__m256i *)(q16 + i), _mm256_cvtepi8_epi16(bytes));
    }
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

/* 16 numbers in the lower half, zeros above */
NB_INLINE __m512i lower(__m256i x) { return _mm512_inserti64x4(_mm512_setzero_si512(), x, 0); }

/* q: int16 at the start of each head's output */
NB_INLINE void dots(int32_t to[4], const float *q, const int8_t *k, uint32_t head_dim, int heads) {
    __m512i acc[4];
    NB_UNROLL
    for (int h = 0; h < heads; h++) acc[h] = _mm512_setzero_si512();
    uint32_t i = 0;
    for (; i + 32 <= head_dim; i += 32) {
        const __m512i k16 = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(k + i)));
        NB_UNROLL
        for (int h = 0; h < heads; h++) {
            const void *q16 = (const int16_t *)(const void *)(q + (size_t)h * head_dim) + i;
            acc[h] = _mm512_dpwssd_epi32(acc[h], k16, _mm512_loadu_si512(q16));
        }
    }
    if (i < head_dim) {
        const __m512i k16 = lower(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(k + i))));
        NB_UNROLL
        for (int h = 0; h < heads; h++) {
            const void *q16 = (const int16_t *)(const void *)(q + (size_t)h * head_dim) + i;
            acc[h] = _mm512_dpwssd_epi32(acc[h], k16, lower(_mm256_loadu_si256((const __m256i *)q16)));
        }
    }
    NB_UNROLL
    for (int h = 0; h < heads; h++) to[h] = nb_sum16(acc[h]);
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
        max[h] = nb_exp_scores16(weight, p0, p1, cap, &sum[h]);
        for (uint32_t p = 0; p < p1 - p0; p++) weight[p] *= kv->v_scale[p0 + p];
    }
    nb_weigh(out, scores, v, p1 - p0, kv->head_dim, NB_KV_I8, heads);
}

nb_attend_fn nb_attend_f32_f32_i8__scalar, nb_attend_f32_f32_i8__avx512vnni;
void nb_attend_f32_f32_i8__avx512vnni(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 16) {
        nb_attend_f32_f32_i8__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
