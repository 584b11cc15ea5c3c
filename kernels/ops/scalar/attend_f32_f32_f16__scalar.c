/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of positions with half-float keys and values: scores, maximum, exp and their sum, and the
 * weighted sum of values in increasing position. ops/scalar/softmax.h has the middle step. */
#include "ops/scalar/softmax.h"

static void attend(const struct nb_kv *kv, const struct nb_attention *a, uint32_t t, uint32_t h) {
    const uint32_t n = kv->head_dim, p0 = a->from[t], p1 = a->to[t];
    const size_t at = (size_t)t * a->heads + h;
    const float *q = a->q + t * a->ldq + (size_t)h * n;
    float *scores = a->scores + at * NB_RANGE, *out = a->out + t * a->ldo + (size_t)h * n;
    for (uint32_t p = p0; p < p1; p++) {
        const uint16_t *k = (const uint16_t *)kv->k + (size_t)p * n;
        float lane[NB_LANES] = {0};
        for (uint32_t i = 0; i < n; i++) lane[i % NB_LANES] += q[i] * nb_from_f16(k[i]);
        scores[p - p0] = nb_fold(lane) * a->scale;
    }
    a->max[at] = nb_exp_scores(scores, p0, p1, a->cap, &a->sum[at]);
    for (uint32_t c = 0; c < n; c++) out[c] = 0;
    for (uint32_t p = p0; p < p1; p++) {
        const uint16_t *v = (const uint16_t *)kv->v + (size_t)p * n;
        for (uint32_t c = 0; c < n; c++) out[c] += scores[p - p0] * nb_from_f16(v[c]);
    }
}

nb_attend_fn nb_attend_f32_f32_f16__scalar;
void nb_attend_f32_f32_f16__scalar(const struct nb_kv *kv, const struct nb_attention *a) {
    for (uint32_t t = 0; t < a->tokens; t++)
        for (uint32_t h = 0; h < a->heads; h++) attend(kv, a, t, h);
}
