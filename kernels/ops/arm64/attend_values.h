/* SPDX-License-Identifier: Apache-2.0
 * The second half of attention on 64-bit Arm: the weighted sum of values, out[c] += weight[p] * v[p][c] in increasing p.
 * Four queries x 16 channels are 16 accumulators; four positions' weights of a query are one register, taken by element. */
#ifndef NB_OPS_ARM64_ATTEND_VALUES_H
#define NB_OPS_ARM64_ATTEND_VALUES_H

#include "ops/arm64/attend.h"

/* 4 * n channels of one position */
NB_INLINE void nb_values(float32x4_t *to, const void *v, size_t i, uint32_t type, int n) {
    if (type == NB_KV_F16) {
        NB_UNROLL
        for (int c = 0; c < n; c++) to[c] = nb_halves4((const uint16_t *)v + i + 4 * c);
        return;
    }
    NB_UNROLL
    for (int c = 0; c < n; c += 2) {
        const int16x8_t words = vmovl_s8(vld1_s8((const int8_t *)v + i + 4 * c));
        to[c] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
        to[c + 1] = vcvtq_f32_s32(vmovl_high_s16(words));
    }
}

/* 4 * vectors channels from c on */
NB_INLINE void nb_weigh_tile(const struct nb_kv *kv, const struct nb_four *f, uint32_t low, uint32_t high, uint32_t c,
                             uint32_t type, int queries, int vectors) {
    const void *v = kv->v;
    const size_t n = kv->head_dim;
    float32x4_t acc[4][8], x[8];
    NB_UNROLL
    for (int d = 0; d < queries; d++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) acc[d][i] = vld1q_f32(f->out[d] + c + 4 * i);
    }
    const float *weight[4];
    for (int d = 0; d < queries; d++) weight[d] = f->scores[d] + (low - f->from[d]);
    uint32_t p = low;
    for (; p + 4 <= high; p += 4) {
        float32x4_t four[4];
        NB_UNROLL
        for (int d = 0; d < queries; d++) four[d] = vld1q_f32(weight[d] + (p - low));
        NB_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            nb_values(x, v, (p + k) * n + c, type, vectors);
            NB_UNROLL
            for (int d = 0; d < queries; d++) {
                NB_UNROLL
                for (int i = 0; i < vectors; i++) acc[d][i] = vaddq_f32(acc[d][i], vmulq_n_f32(x[i], four[d][k]));
            }
        }
    }
    for (; p < high; p++) {
        nb_values(x, v, p * n + c, type, vectors);
        NB_UNROLL
        for (int d = 0; d < queries; d++) {
            NB_UNROLL
            for (int i = 0; i < vectors; i++) acc[d][i] = vaddq_f32(acc[d][i], vmulq_n_f32(x[i], weight[d][p - low]));
        }
    }
    NB_UNROLL
    for (int d = 0; d < queries; d++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) vst1q_f32(f->out[d] + c + 4 * i, acc[d][i]);
    }
}

/* All channels, a multiple of 8: tiles of up to 16 accumulators as far as they go */
NB_INLINE void nb_weigh(const struct nb_kv *kv, const struct nb_four *f, uint32_t low, uint32_t high, uint32_t type,
                        int queries) {
    const uint32_t vectors = queries <= 2 ? 8 : 4;
    uint32_t c = 0;
    for (; c + 4 * vectors <= kv->head_dim; c += 4 * vectors) nb_weigh_tile(kv, f, low, high, c, type, queries, (int)vectors);
    for (; c < kv->head_dim; c += 8) nb_weigh_tile(kv, f, low, high, c, type, queries, 2);
}

#endif
