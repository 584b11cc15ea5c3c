/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of positions with int8 keys and values, one scale a position each: integer scores, then as
 * with half floats. The quantized query lies in `out` until the values need it. */
#include "ops/scalar/softmax.h"

nb_attend_fn nb_attend_f32_f32_i8__scalar;
void nb_attend_f32_f32_i8__scalar(const float *q, uint32_t heads, const struct nb_kv *kv, uint32_t p0, uint32_t p1, float scale,
                                  float *scores, float *max, float *sum, float *out) {
    const uint32_t n = kv->head_dim;
    for (uint32_t h = 0; h < heads; h++, q += n, scores += NB_RANGE, out += n) {
        int8_t *q8 = (int8_t *)out;
        const float q_scale = nb_to_int8(q8, q, n);
        for (uint32_t p = p0; p < p1; p++) {
            const int8_t *k = (const int8_t *)kv->k + (size_t)p * n;
            int32_t dot = 0;
            for (uint32_t i = 0; i < n; i++) dot += q8[i] * k[i];
            scores[p - p0] = (float)dot * (q_scale * kv->k_scale[p] * scale);
        }
        max[h] = nb_exp_scores(scores, p0, p1, &sum[h]);
        for (uint32_t c = 0; c < n; c++) out[c] = 0;
        for (uint32_t p = p0; p < p1; p++) {
            const int8_t *v = (const int8_t *)kv->v + (size_t)p * n;
            const float e = scores[p - p0] * kv->v_scale[p];
            for (uint32_t c = 0; c < n; c++) out[c] += e * (float)v[c];
        }
    }
}
