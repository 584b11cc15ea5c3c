/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, RVV (contract in hal.h).
 * Scores are exact integers, so a key and a query of up to 4 registers of int8 are one widening product and one widening
 * reduction; a key is loaded once for up to four heads. The int32 sums wait where the scores will be, the int8 query where
 * the output will be, its scale in sum[]. */
#include "ops/riscv64/attend_rvv.h"

/* sum + the dot product of two runs of int8 */
NB_INLINE vint32m1_t dot(vint32m1_t sum, vint8m4_t k, const int8_t *q, size_t vl) {
    return __riscv_vwredsum_vs_i16m8_i32m1(__riscv_vwmul_vv_i16m8(k, __riscv_vle8_v_i8m4(q, vl), vl), sum, vl);
}

NB_INLINE void attend(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_heads *heads, int count) {
    const size_t n = kv->head_dim, positions = heads->to - heads->from;
    const int8_t *k = (const int8_t *)kv->k + heads->from * n, *v = (const int8_t *)kv->v + heads->from * n;
    const float *k_scale = kv->k_scale + heads->from, *v_scale = kv->v_scale + heads->from;
    for (int h = 0; h < count; h++)
        heads->sum[h] = nb_vto_int8((int8_t *)(heads->out + (size_t)h * n), heads->q + (size_t)h * n, n);
    const int8_t *q = (const int8_t *)heads->out;
    int32_t *dots = (int32_t *)(void *)heads->scores;
    for (size_t p = 0; p < positions; p++, k += n) {
        vint32m1_t sum0 = __riscv_vmv_s_x_i32m1(0, 1), sum1 = sum0, sum2 = sum0, sum3 = sum0;
        for (size_t i = 0, vl; i < n; i += vl) {
            vl = __riscv_vsetvl_e8m4(n - i);
            const vint8m4_t key = __riscv_vle8_v_i8m4(k + i, vl);
            sum0 = dot(sum0, key, q + i, vl);
            if (count > 1) sum1 = dot(sum1, key, q + 4 * n + i, vl);
            if (count > 2) sum2 = dot(sum2, key, q + 8 * n + i, vl);
            if (count > 3) sum3 = dot(sum3, key, q + 12 * n + i, vl);
        }
        __riscv_vse32_v_i32m1(dots + p, sum0, 1);
        if (count > 1) __riscv_vse32_v_i32m1(dots + NB_RANGE + p, sum1, 1);
        if (count > 2) __riscv_vse32_v_i32m1(dots + 2 * NB_RANGE + p, sum2, 1);
        if (count > 3) __riscv_vse32_v_i32m1(dots + 3 * NB_RANGE + p, sum3, 1);
    }
    for (int h = 0; h < count; h++) {
        float *scores = heads->scores + h * NB_RANGE;
        for (size_t p = 0, vl; p < positions; p += vl) {
            vl = __riscv_vsetvl_e32m4(positions - p);
            const vfloat32m4_t exact = __riscv_vfcvt_f_x_v_f32m4(__riscv_vle32_v_i32m4(dots + h * NB_RANGE + p, vl), vl);
            vfloat32m4_t scale = __riscv_vfmul_vf_f32m4(__riscv_vle32_v_f32m4(k_scale + p, vl), heads->sum[h], vl);
            scale = __riscv_vfmul_vf_f32m4(scale, a->scale, vl);
            __riscv_vse32_v_f32m4(scores + p, __riscv_vfmul_vv_f32m4(exact, scale, vl), vl);
        }
        heads->max[h] = nb_vexp_scores(scores, heads->from, heads->to, a->cap, &heads->sum[h]);
        for (size_t p = 0, vl; p < positions; p += vl) {
            vl = __riscv_vsetvl_e32m4(positions - p);
            const vfloat32m4_t e = __riscv_vle32_v_f32m4(scores + p, vl);
            __riscv_vse32_v_f32m4(scores + p, __riscv_vfmul_vv_f32m4(e, __riscv_vle32_v_f32m4(v_scale + p, vl), vl), vl);
        }
    }
    nb_vweigh(heads->out, heads->scores, v, positions, n, NB_KV_I8, count);
}

nb_attend_fn nb_attend_f32_f32_i8__rvv;
void nb_attend_f32_f32_i8__rvv(const struct nb_kv *kv, const struct nb_attention *a) { NB_ATTEND_BY_FOUR(attend) }
