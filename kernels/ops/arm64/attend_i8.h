/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values on 64-bit Arm (contract in hal.h). Scores are exact integers, so their sums
 * may run in any order: four queries meet four keys, 16 accumulators for eight loads of 16 channels. The quantized queries
 * lie where the output will be. What differs between levels is the step nb_dot16. */
#ifndef NB_OPS_ARM64_ATTEND_I8_H
#define NB_OPS_ARM64_ATTEND_I8_H

#include "ops/arm64/attend_values.h"

/* acc += 16 products, in whatever lanes */
typedef int32x4_t nb_dot16_fn(int32x4_t acc, int8x16_t k, int8x16_t q);

NB_INLINE int8x16_t nb_bytes(const int8_t *p, int all) { return all ? vld1q_s8(p) : vcombine_s8(vld1_s8(p), vdup_n_s8(0)); }

/* One step of all dot products, 16 channels or the last 8 */
NB_INLINE void nb_add_bytes(int32x4_t acc[4][4], const struct nb_four *f, const int8_t *k, size_t head_dim, uint32_t i,
                            int queries, int keys, int all, nb_dot16_fn *dot16) {
    int8x16_t key[4];
    NB_UNROLL
    for (int p = 0; p < keys; p++) key[p] = nb_bytes(k + (size_t)p * head_dim + i, all);
    NB_UNROLL
    for (int d = 0; d < queries; d++) {
        const int8x16_t q = nb_bytes((const int8_t *)f->out[d] + i, all);
        NB_UNROLL
        for (int p = 0; p < keys; p++) acc[d][p] = dot16(acc[d][p], key[p], q);
    }
}

/* Scores of keys [p, p + keys), keys: 4 or 1 */
NB_INLINE void nb_dots(const struct nb_kv *kv, const struct nb_four *f, float scale, uint32_t p, int queries, int keys,
                       nb_dot16_fn *dot16) {
    const int8_t *k = (const int8_t *)kv->k + (size_t)p * kv->head_dim;
    int32x4_t acc[4][4];
    NB_UNROLL
    for (int d = 0; d < 4; d++) acc[d][0] = acc[d][1] = acc[d][2] = acc[d][3] = vdupq_n_s32(0);
    uint32_t i = 0;
    for (; i + 16 <= kv->head_dim; i += 16) nb_add_bytes(acc, f, k, kv->head_dim, i, queries, keys, 1, dot16);
    if (i < kv->head_dim) nb_add_bytes(acc, f, k, kv->head_dim, i, queries, keys, 0, dot16);
    NB_UNROLL
    for (int d = 0; d < queries; d++) {
        float *to = f->scores[d] + (p - f->from[d]);
        if (keys == 4) {
            const int32x4_t dot = vpaddq_s32(vpaddq_s32(acc[d][0], acc[d][1]), vpaddq_s32(acc[d][2], acc[d][3]));
            const float32x4_t factor = vmulq_n_f32(vmulq_n_f32(vld1q_f32(kv->k_scale + p), f->q_scale[d]), scale);
            vst1q_f32(to, vmulq_f32(vcvtq_f32_s32(dot), factor));
        } else {
            *to = (float)vaddvq_s32(acc[d][0]) * (f->q_scale[d] * kv->k_scale[p] * scale);
        }
    }
}

NB_INLINE void nb_scores(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, uint32_t low,
                         uint32_t high, int queries, nb_dot16_fn *dot16) {
    uint32_t p = low;
    for (; p + 4 <= high; p += 4) nb_dots(kv, f, a->scale, p, queries, 4, dot16);
    for (; p < high; p++) nb_dots(kv, f, a->scale, p, queries, 1, dot16);
}

NB_INLINE void nb_weigh_i8(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, uint32_t low,
                           uint32_t high, int queries) {
    (void)a;
    nb_weigh(kv, f, low, high, NB_KV_I8, queries);
}

NB_ALONE(nb_weigh_i8_alone, nb_weigh_i8)

/* scores: nb_scores with the level's step */
NB_INLINE void nb_attend_i8(const struct nb_kv *kv, const struct nb_attention *a, struct nb_four *f, int queries,
                            nb_positions_fn *scores, nb_positions_fn *scores_alone) {
    for (int d = 0; d < queries; d++) f->q_scale[d] = nb_to_int8x8((int8_t *)f->out[d], f->q[d], kv->head_dim);
    nb_all_positions(kv, a, f, queries, scores, scores_alone);
    nb_exp_four(a, f, queries);
    for (int d = 0; d < queries; d++) {
        float *weight = f->scores[d];
        for (uint32_t i = 0; i < f->to[d] - f->from[d]; i++) weight[i] *= kv->v_scale[f->from[d] + i];
        memset(f->out[d], 0, kv->head_dim * sizeof(float));
    }
    nb_all_positions(kv, a, f, queries, nb_weigh_i8, nb_weigh_i8_alone);
}

#endif
