/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, AVX-512 (contract in hal.h).
 * One register is the 16 virtual lanes of a dot product; up to four heads share a converted key, a single head takes
 * four keys at a time. Needs: head_dim a multiple of 16 (else the scalar kernel runs). */
#include "ops/x86_64/attend_avx512.h"

/* scores of `heads` heads (constant) for keys k[0..keys), heads * keys <= 4 */
NB_INLINE void dots(float *scores, const float *q, const uint16_t *k, uint32_t head_dim, float scale, int heads, int keys) {
    __m512 acc[4];
    NB_UNROLL
    for (int d = 0; d < 4; d++) acc[d] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < head_dim; i += NB_LANES) {
        NB_UNROLL
        for (int p = 0; p < keys; p++) {
            const __m512 key = nb_halves16(k + (size_t)p * head_dim + i);
            NB_UNROLL
            for (int h = 0; h < heads; h++)
                acc[h * keys + p] =
                    _mm512_add_ps(acc[h * keys + p], _mm512_mul_ps(_mm512_loadu_ps(q + (size_t)h * head_dim + i), key));
        }
    }
    const __m128 a = nb_fold_to4(acc[0]), b = nb_fold_to4(acc[1]), c = nb_fold_to4(acc[2]), d = nb_fold_to4(acc[3]);
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)),
                 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    float four[4];
    _mm_storeu_ps(four, _mm_mul_ps(_mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)), _mm_set1_ps(scale)));
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
    for (int h = 0; h < heads; h++) max[h] = nb_exp_scores16(scores + h * NB_RANGE, p0, p1, cap, &sum[h]);
    nb_weigh(out, scores, v, count, kv->head_dim, NB_KV_F16, heads);
}

nb_attend_fn nb_attend_f32_f32_f16__scalar, nb_attend_f32_f32_f16__avx512vnni;
void nb_attend_f32_f32_f16__avx512vnni(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 16) {
        nb_attend_f32_f32_f16__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
