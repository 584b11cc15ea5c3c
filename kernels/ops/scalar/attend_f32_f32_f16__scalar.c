/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of positions with half-float keys and values: scores, maximum, exp and their sum, and the
 * weighted sum of values in increasing position. ops/scalar/softmax.h has the middle step. */
#include "ops/scalar/softmax.h"

nb_attend_fn nb_attend_f32_f32_f16__scalar;
void nb_attend_f32_f32_f16__scalar(const float *q, uint32_t heads, const struct nb_kv *kv, uint32_t p0, uint32_t p1, float scale,
                                   float *scores, float *max, float *sum, float *out) {
    const uint32_t n = kv->head_dim;
    for (uint32_t h = 0; h < heads; h++, q += n, scores += NB_RANGE, out += n) {
        for (uint32_t p = p0; p < p1; p++) {
            const uint16_t *k = (const uint16_t *)kv->k + (size_t)p * n;
            float lane[NB_LANES] = {0};
            for (uint32_t i = 0; i < n; i++) lane[i % NB_LANES] += q[i] * nb_from_f16(k[i]);
            scores[p - p0] = nb_fold(lane) * scale;
        }
        max[h] = nb_exp_scores(scores, p0, p1, &sum[h]);
        for (uint32_t c = 0; c < n; c++) out[c] = 0;
        for (uint32_t p = p0; p < p1; p++) {
            const uint16_t *v = (const uint16_t *)kv->v + (size_t)p * n;
            for (uint32_t c = 0; c < n; c++) out[c] += scores[p - p0] * nb_from_f16(v[c]);
        }
    }
}
