/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, SSE4.1 (contract in hal.h).
 * Half floats are dear here, some 16 instructions for eight, so a key is converted once for all heads and lies as floats
 * where the output will be; then two heads at a time, whose eight chains of additions (16 virtual lanes each) fill half of
 * the registers. Needs: head_dim a multiple of 8 (else the scalar kernel runs). */
#include "ops/x86_64/attend_sse41.h"

/* scores of `heads` heads (constant, 1 or 2) for the key in `key` */
NB_INLINE void dots(float *scores, const float *q, const float *key, uint32_t head_dim, float scale, int heads) {
    __m128 acc[2][4];
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++) acc[h][j] = _mm_setzero_ps();
    }
    uint32_t i = 0;
    for (; i + NB_LANES <= head_dim; i += NB_LANES) {
        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m128 k = _mm_loadu_ps(key + i + 4 * j);
            NB_UNROLL
            for (int h = 0; h < heads; h++)
                acc[h][j] = _mm_add_ps(acc[h][j], _mm_mul_ps(_mm_loadu_ps(q + (size_t)h * head_dim + i + 4 * j), k));
        }
    }
    if (i < head_dim) { /* eight are left: lanes 0..7 */
        NB_UNROLL
        for (int j = 0; j < 2; j++) {
            NB_UNROLL
            for (int h = 0; h < heads; h++)
                acc[h][j] = _mm_add_ps(
                    acc[h][j], _mm_mul_ps(_mm_loadu_ps(q + (size_t)h * head_dim + i + 4 * j), _mm_loadu_ps(key + i + 4 * j)));
        }
    }
    NB_UNROLL
    for (int h = 0; h < heads; h++) scores[h * NB_RANGE] = nb_fold16(acc[h]) * scale;
}

NB_INLINE void attend(const float *q, const struct nb_kv *kv, uint32_t p0, uint32_t p1, float scale, float cap, float *scores,
                      float *max, float *sum, float *out, int heads) {
    const size_t n = kv->head_dim;
    const uint16_t *k = (const uint16_t *)kv->k + p0 * n, *v = (const uint16_t *)kv->v + p0 * n;
    for (uint32_t p = 0; p < p1 - p0; p++, k += n) {
        for (size_t i = 0; i < n; i += 8) {
            __m128 x[2];
            nb_halves4x2(x, k + i);
            _mm_storeu_ps(out + i, x[0]);
            _mm_storeu_ps(out + i + 4, x[1]);
        }
        NB_UNROLL
        for (int h = 0; h + 2 <= heads; h += 2) dots(scores + h * NB_RANGE + p, q + (size_t)h * n, out, kv->head_dim, scale, 2);
        if (heads % 2) dots(scores + (heads - 1) * NB_RANGE + p, q + (size_t)(heads - 1) * n, out, kv->head_dim, scale, 1);
    }
    for (int h = 0; h < heads; h++) max[h] = nb_exp_scores4(scores + h * NB_RANGE, p0, p1, cap, &sum[h]);
    nb_weigh(out, scores, v, p1 - p0, kv->head_dim, NB_KV_F16, heads);
}

nb_attend_fn nb_attend_f32_f32_f16__scalar, nb_attend_f32_f32_f16__sse41;
void nb_attend_f32_f32_f16__sse41(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8) {
        nb_attend_f32_f32_f16__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
