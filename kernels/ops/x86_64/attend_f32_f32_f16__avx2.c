/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, AVX2 + F16C (contract in hal.h).
 * Four dot products go together, of four heads with one key, two with two or one with four: a key is converted once
 * for all heads, and the eight chains of additions (16 virtual lanes each) hide each other's latency.
 * Needs: head_dim a multiple of 8 (else the scalar kernel runs). */
#include "ops/x86_64/attend_avx2.h"

/* scores of `heads` heads (constant) for keys k[0..keys), heads * keys <= 4 */
NB_INLINE void dots(float *scores, const float *q, const uint16_t *k, uint32_t head_dim, float scale, int heads, int keys) {
    __m256 acc[4][2];
    NB_UNROLL
    for (int d = 0; d < 4; d++) acc[d][0] = acc[d][1] = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + NB_LANES <= head_dim; i += NB_LANES) {
        NB_UNROLL
        for (int p = 0; p < keys; p++) {
            const __m256 low = nb_halves8(k + (size_t)p * head_dim + i), high = nb_halves8(k + (size_t)p * head_dim + i + 8);
            NB_UNROLL
            for (int h = 0; h < heads; h++) {
                const float *qh = q + (size_t)h * head_dim + i;
                acc[h * keys + p][0] = _mm256_add_ps(acc[h * keys + p][0], _mm256_mul_ps(_mm256_loadu_ps(qh), low));
                acc[h * keys + p][1] = _mm256_add_ps(acc[h * keys + p][1], _mm256_mul_ps(_mm256_loadu_ps(qh + 8), high));
            }
        }
    }
    if (i < head_dim) { /* eight are left: lanes 0..7 */
        NB_UNROLL
        for (int p = 0; p < keys; p++) {
            NB_UNROLL
            for (int h = 0; h < heads; h++)
                acc[h * keys + p][0] =
                    _mm256_add_ps(acc[h * keys + p][0], _mm256_mul_ps(_mm256_loadu_ps(q + (size_t)h * head_dim + i),
                                                                      nb_halves8(k + (size_t)p * head_dim + i)));
        }
    }
    float four[4];
    _mm_storeu_ps(four, _mm_mul_ps(nb_fold4((const __m256(*)[2])acc), _mm_set1_ps(scale)));
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int p = 0; p < keys; p++) scores[h * NB_RANGE + p] = four[h * keys + p];
    }
}

NB_INLINE void attend(const float *q, const struct nb_kv *kv, uint32_t p0, uint32_t p1, float scale, float cap, float *scores,
                      float *max, float *sum, float *out, int heads) {
    const size_t n = kv->head_dim;
    const uint16_t *k = (const uint16_t *)kv->k + p0 * n, *v = (const uint16_t *)kv->v + p0 * n;
    const uint32_t keys = heads == 1 ? 4 : heads == 2 ? 2 : 1, count = p1 - p0;
    uint32_t p = 0;
    for (; p + keys <= count; p += keys) dots(scores + p, q, k + p * n, kv->head_dim, scale, heads, (int)keys);
    for (; p < count; p++) dots(scores + p, q, k + p * n, kv->head_dim, scale, heads, 1);
    for (int h = 0; h < heads; h++) max[h] = nb_exp_scores8(scores + h * NB_RANGE, p0, p1, cap, &sum[h]);
    nb_weigh(out, scores, v, count, kv->head_dim, NB_KV_F16, heads);
}

nb_attend_fn nb_attend_f32_f32_f16__scalar, nb_attend_f32_f32_f16__avx2;
void nb_attend_f32_f32_f16__avx2(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8) {
        nb_attend_f32_f32_f16__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
