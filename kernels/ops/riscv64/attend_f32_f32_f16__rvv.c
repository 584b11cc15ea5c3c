/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, RVV (contract in hal.h).
 * A dot product is 16 virtual lanes, a register group of exactly 16 floats at every VLEN; a key is converted once for up
 * to four heads. Folding the lanes one product at a time would take four slides and four additions each, so the lanes of 16
 * positions are stored as columns of a 16 x 16 square, whose rows then fold all 16 at once: 15 additions. */
#include "ops/riscv64/attend_rvv.h"

/* acc + q * k in the lanes below vl, rounded twice */
NB_INLINE vfloat32m4_t add_product(vfloat32m4_t acc, const float *q, vfloat32m4_t k, size_t vl) {
    return __riscv_vfadd_vv_f32m4_tu(acc, acc, __riscv_vfmul_vv_f32m4(__riscv_vle32_v_f32m4(q, vl), k, vl), vl);
}

NB_INLINE vfloat32m4_t row(const float *square, int lane, size_t vl) {
    return __riscv_vle32_v_f32m4(square + lane * NB_LANES, vl);
}

/* Lanes `lane` and 8 further, then 4 further */
NB_INLINE vfloat32m4_t fold2(const float *square, int lane, size_t vl) {
    const vfloat32m4_t low = __riscv_vfadd_vv_f32m4(row(square, lane, vl), row(square, lane + 8, vl), vl);
    const vfloat32m4_t high = __riscv_vfadd_vv_f32m4(row(square, lane + 4, vl), row(square, lane + 12, vl), vl);
    return __riscv_vfadd_vv_f32m4(low, high, vl);
}

/* nb_fold of up to 16 columns */
NB_INLINE vfloat32m4_t fold(const float *square, size_t vl) {
    const vfloat32m4_t even = __riscv_vfadd_vv_f32m4(fold2(square, 0, vl), fold2(square, 2, vl), vl);
    const vfloat32m4_t odd = __riscv_vfadd_vv_f32m4(fold2(square, 1, vl), fold2(square, 3, vl), vl);
    return __riscv_vfadd_vv_f32m4(even, odd, vl);
}

NB_INLINE void store_column(float *square, vfloat32m4_t lanes) {
    __riscv_vsse32_v_f32m4(square, NB_LANES * sizeof(float), lanes, NB_LANES);
}

/* Scores of up to 16 positions */
NB_INLINE void scores_of(const struct nb_heads *heads, size_t p0, const uint16_t *k, size_t n, size_t positions, float scale,
                         int count) {
    float square[4][NB_LANES * NB_LANES];
    for (size_t p = 0; p < positions; p++, k += n) {
        vfloat32m4_t acc0 = __riscv_vfmv_v_f_f32m4(0, NB_LANES), acc1 = acc0, acc2 = acc0, acc3 = acc0;
        for (size_t i = 0; i < n; i += NB_LANES) {
            const size_t vl = n - i < NB_LANES ? n - i : NB_LANES;
            const vfloat32m4_t key = nb_vhalves(k + i, vl);
            acc0 = add_product(acc0, heads->q + i, key, vl);
            if (count > 1) acc1 = add_product(acc1, heads->q + n + i, key, vl);
            if (count > 2) acc2 = add_product(acc2, heads->q + 2 * n + i, key, vl);
            if (count > 3) acc3 = add_product(acc3, heads->q + 3 * n + i, key, vl);
        }
        store_column(square[0] + p, acc0);
        if (count > 1) store_column(square[1] + p, acc1);
        if (count > 2) store_column(square[2] + p, acc2);
        if (count > 3) store_column(square[3] + p, acc3);
    }
    for (int h = 0; h < count; h++) {
        const vfloat32m4_t s = __riscv_vfmul_vf_f32m4(fold(square[h], positions), scale, positions);
        __riscv_vse32_v_f32m4(heads->scores + (size_t)h * NB_RANGE + p0, s, positions);
    }
}

NB_INLINE void attend(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_heads *heads, int count) {
    const size_t n = kv->head_dim, positions = heads->to - heads->from;
    const uint16_t *k = (const uint16_t *)kv->k + heads->from * n, *v = (const uint16_t *)kv->v + heads->from * n;
    for (size_t p = 0; p < positions; p += NB_LANES)
        scores_of(heads, p, k + p * n, n, positions - p < NB_LANES ? positions - p : NB_LANES, a->scale, count);
    for (int h = 0; h < count; h++)
        heads->max[h] = nb_vexp_scores(heads->scores + h * NB_RANGE, heads->from, heads->to, a->cap, &heads->sum[h]);
    nb_vweigh(heads->out, heads->scores, v, positions, n, NB_KV_F16, count);
}

nb_attend_fn nb_attend_f32_f32_f16__rvv;
void nb_attend_f32_f32_f16__rvv(const struct nb_kv *kv, const struct nb_attention *a) { NB_ATTEND_BY_FOUR(attend) }
