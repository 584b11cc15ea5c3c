/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of positions with int8 keys and values, one scale a position each: integer scores, then as
 * with half floats. The quantized query lies in `out` until the values need it. */
#include "ops/scalar/softmax.h"

static void attend(const struct nb_kv *kv, const struct nb_attention *a, uint32_t t, uint32_t h) {
    const uint32_t n = kv->head_dim, p0 = a->from[t], p1 = a->to[t];
    const size_t at = (size_t)t * a->heads + h;
    float *scores = a->scores + at * NB_RANGE, *out = a->out + t * a->ldo + (size_t)h * n;
    int8_t *q8 = (int8_t *)out;
    const float q_scale = nb_to_int8(q8, a->q + t * a->ldq + (size_t)h * n, n);
    for (uint32_t p = p0; p < p1; p++) {
        const int8_t *k = (const int8_t *)kv->k + (size_t)p * n;
        int32_t dot = 0;
        for (uint32_t i = 0; i < n; i++) dot += q8[i] * k[i];
        scores[p - p0] = (float)dot * (q_scale * kv->k_scale[p] * a->scale);
    }
    a->max[at] = nb_exp_scores(scores, p0, p1, a->cap, &a->sum[at]);
    for (uint32_t c = 0; c < n; c++) out[c] = 0;
    for (uint32_t p = p0; p < p1; p++) {
        const int8_t *v = (const int8_t *)kv->v + (size_t)p * n;
        const float e = scores[p - p0] * kv->v_scale[p];
        for (uint32_t c = 0; c < n; c++) out[c] += e * (float)v[c];
    }
}

nb_attend_fn nb_attend_f32_f32_i8__scalar;
void nb_attend_f32_f32_i8__scalar(const struct nb_kv *kv, const struct nb_attention *a) {
    for (uint32_t t = 0; t < a->tokens; t++)
        for (uint32_t h = 0; h < a->heads; h++) attend(kv, a, t, h);
}
