/* SPDX-License-Identifier: Apache-2.0
 * What attention over half-float and over int8 caches shares on RVV: the walk over query heads that share a cache, the
 * softmax of one range, and the weighted sum of values, whose loads and conversions up to four heads share. */
#ifndef NB_OPS_ATTEND_RVV_H
#define NB_OPS_ATTEND_RVV_H

#include "ops/riscv64/rvv.h"

/* One token's run of up to four heads of an nb_attention: where their numbers are */
struct nb_heads {
    const float *q;
    float *scores, *max, *sum, *out;
    uint32_t from, to;
};

/* The body of an nb_attend_fn: attend(kv, a, &heads, count) with a constant count of 1 to 4 */
#define NB_ATTEND_BY_FOUR(attend)                                                                                                \
    for (uint32_t t = 0; t < a->tokens; t++)                                                                                     \
        for (uint32_t h = 0; h < a->heads; h += 4) {                                                                             \
            const size_t at = (size_t)t * a->heads + h, column = (size_t)h * kv->head_dim;                                       \
            const struct nb_heads heads = {.q = a->q + t * a->ldq + column,                                                      \
                                           .scores = a->scores + at * NB_RANGE,                                                  \
                                           .max = a->max + at,                                                                   \
                                           .sum = a->sum + at,                                                                   \
                                           .out = a->out + t * a->ldo + column,                                                  \
                                           .from = a->from[t],                                                                   \
                                           .to = a->to[t]};                                                                      \
            switch (a->heads - h) {                                                                                              \
            case 1: attend(kv, a, &heads, 1); break;                                                                             \
            case 2: attend(kv, a, &heads, 2); break;                                                                             \
            case 3: attend(kv, a, &heads, 3); break;                                                                             \
            default: attend(kv, a, &heads, 4); break;                                                                            \
            }                                                                                                                    \
        }

/* cap * tanh(x / cap) */
NB_INLINE vfloat32m4_t nb_vsoftcap(vfloat32m4_t x, float cap, size_t vl) {
    const vfloat32m4_t u = __riscv_vfdiv_vf_f32m4(x, cap, vl), e = nb_vexp(__riscv_vfadd_vv_f32m4(u, u, vl), vl);
    const vfloat32m4_t below = __riscv_vfsub_vf_f32m4(e, 1.0f, vl), above = __riscv_vfadd_vf_f32m4(e, 1.0f, vl);
    return __riscv_vfmul_vf_f32m4(__riscv_vfdiv_vv_f32m4(below, above, vl), cap, vl);
}

/* nb_exp_scores of softmax.h. Score i belongs in lane (p0 + i) % 16 of the sum; it is added in lane i % 16, and the lanes
 * turn once before the fold. */
NB_INLINE float nb_vexp_scores(float *scores, uint32_t p0, uint32_t p1, float cap, float *sum) {
    const size_t n = p1 - p0;
    vfloat32m1_t top = __riscv_vfmv_s_f_f32m1(-INFINITY, 1);
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m4(n - i);
        vfloat32m4_t s = __riscv_vle32_v_f32m4(scores + i, vl);
        if (cap != 0) {
            s = nb_vsoftcap(s, cap, vl);
            __riscv_vse32_v_f32m4(scores + i, s, vl);
        }
        top = __riscv_vfredmax_vs_f32m4_f32m1(s, top, vl);
    }
    const float max = __riscv_vfmv_f_s_f32m1_f32(top) + 0.0f; /* +0 even if only zeros of both signs were there */
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m4(n - i);
        const vfloat32m4_t less = __riscv_vfsub_vf_f32m4(__riscv_vle32_v_f32m4(scores + i, vl), max, vl);
        __riscv_vse32_v_f32m4(scores + i, nb_vexp(less, vl), vl);
    }
    vfloat32m4_t lanes = __riscv_vfmv_v_f_f32m4(0, NB_LANES);
    for (size_t i = 0; i < n; i += NB_LANES) {
        const size_t vl = n - i < NB_LANES ? n - i : NB_LANES;
        lanes = __riscv_vfadd_vv_f32m4_tu(lanes, lanes, __riscv_vle32_v_f32m4(scores + i, vl), vl);
    }
    float turned[2 * NB_LANES];
    __riscv_vse32_v_f32m4(turned, lanes, NB_LANES);
    __riscv_vse32_v_f32m4(turned + NB_LANES, lanes, NB_LANES);
    *sum = nb_vfold(__riscv_vle32_v_f32m4(turned + (NB_LANES - p0 % NB_LANES) % NB_LANES, NB_LANES));
    return max;
}

/* Values of a cache as floats, from element i on */
NB_INLINE vfloat32m4_t nb_vvalues(const void *v, size_t i, uint32_t type, size_t vl) {
    if (type == NB_KV_F16) return nb_vhalves((const uint16_t *)v + i, vl);
    return __riscv_vfcvt_f_x_v_f32m4(__riscv_vsext_vf4_i32m4(__riscv_vle8_v_i8m1((const int8_t *)v + i, vl), vl), vl);
}

/* acc + weight * x, rounded twice */
NB_INLINE vfloat32m4_t nb_vadd_weighted(vfloat32m4_t acc, float weight, vfloat32m4_t x, size_t vl) {
    return __riscv_vfadd_vv_f32m4(acc, __riscv_vfmul_vf_f32m4(x, weight, vl), vl);
}

/* out[h][c] = sum over the n positions, in increasing order, of weight[h][p] * v[p][c] for `heads` heads (constant, 1 to 4);
 * v: the first position. */
NB_INLINE void nb_vweigh(float *out, const float *weight, const void *v, size_t n, size_t head_dim, uint32_t type, int heads) {
    for (size_t c = 0, vl; c < head_dim; c += vl) {
        vl = __riscv_vsetvl_e32m4(head_dim - c);
        vfloat32m4_t acc0 = __riscv_vfmv_v_f_f32m4(0, vl), acc1 = acc0, acc2 = acc0, acc3 = acc0;
        for (size_t p = 0; p < n; p++) {
            const vfloat32m4_t x = nb_vvalues(v, p * head_dim + c, type, vl);
            acc0 = nb_vadd_weighted(acc0, weight[p], x, vl);
            if (heads > 1) acc1 = nb_vadd_weighted(acc1, weight[NB_RANGE + p], x, vl);
            if (heads > 2) acc2 = nb_vadd_weighted(acc2, weight[2 * NB_RANGE + p], x, vl);
            if (heads > 3) acc3 = nb_vadd_weighted(acc3, weight[3 * NB_RANGE + p], x, vl);
        }
        __riscv_vse32_v_f32m4(out + c, acc0, vl);
        if (heads > 1) __riscv_vse32_v_f32m4(out + head_dim + c, acc1, vl);
        if (heads > 2) __riscv_vse32_v_f32m4(out + 2 * head_dim + c, acc2, vl);
        if (heads > 3) __riscv_vse32_v_f32m4(out + 3 * head_dim + c, acc3, vl);
    }
}

#endif
