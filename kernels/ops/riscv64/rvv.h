/* SPDX-License-Identifier: Apache-2.0
 * What the RVV kernels share: math.h on vectors of any length, half floats in integer steps (V 1.0 alone has no half-float
 * arithmetic), the fold of 16 virtual lanes. Conversions to integers round to nearest even by the default rounding mode;
 * vfcvt.rtz, a C cast from float, is never used. */
#ifndef NB_OPS_RVV_H
#define NB_OPS_RVV_H

#ifndef __riscv_v
#error "an RVV kernel compiled without the flags of its level"
#endif

#include <math.h>
#include <riscv_vector.h>

#include "ops/scalar/math.h"
#include "ops/unroll.h"

/* What needs the address `next` waits for the vector `done`: clang brings all loads forward otherwise, and spills what no longer
 * fits the registers. Stands where the vector type changes anyway, since clang sets it anew after each asm. */
#define NB_AFTER(next, done) __asm__("" : "+r"(next), "+vr"(done))
#define NB_AFTER_BOTH(next, u, v) __asm__("" : "+r"(next), "+vr"(u), "+vr"(v))

/* p * r + c, rounded twice */
NB_INLINE vfloat32m4_t nb_horner(vfloat32m4_t p, vfloat32m4_t r, float c, size_t vl) {
    return __riscv_vfadd_vf_f32m4(__riscv_vfmul_vv_f32m4(p, r, vl), c, vl);
}

/* nb_exp of math.h; vfmax and vfmin give the number where the other operand is NaN, as the comparisons there do. */
NB_INLINE vfloat32m4_t nb_vexp(vfloat32m4_t x, size_t vl) {
    x = __riscv_vfmax_vf_f32m4(x, -87.0f, vl);
    x = __riscv_vfmin_vf_f32m4(x, 88.0f, vl);
    const vfloat32m4_t t = __riscv_vfadd_vf_f32m4(__riscv_vfmul_vf_f32m4(x, 1.44269504f, vl), NB_ROUND, vl);
    const vfloat32m4_t n = __riscv_vfsub_vf_f32m4(t, NB_ROUND, vl);
    vfloat32m4_t r = __riscv_vfsub_vv_f32m4(x, __riscv_vfmul_vf_f32m4(n, 0.693359375f, vl), vl);
    r = __riscv_vfsub_vv_f32m4(r, __riscv_vfmul_vf_f32m4(n, -2.12194440e-4f, vl), vl);
    vfloat32m4_t p = __riscv_vfmul_vf_f32m4(r, 1.9875691500e-4f, vl);
    p = __riscv_vfadd_vf_f32m4(p, 1.3981999507e-3f, vl);
    p = nb_horner(p, r, 8.3334519073e-3f, vl);
    p = nb_horner(p, r, 4.1665795894e-2f, vl);
    p = nb_horner(p, r, 1.6666665459e-1f, vl);
    p = nb_horner(p, r, 5.0000001201e-1f, vl);
    vfloat32m4_t y = __riscv_vfmul_vv_f32m4(p, __riscv_vfmul_vv_f32m4(r, r, vl), vl);
    y = __riscv_vfadd_vf_f32m4(__riscv_vfadd_vv_f32m4(y, r, vl), 1.0f, vl);
    const vuint32m4_t k = __riscv_vsub_vx_u32m4(__riscv_vreinterpret_v_f32m4_u32m4(t), NB_ROUND_BITS - 127, vl);
    return __riscv_vfmul_vv_f32m4(y, __riscv_vreinterpret_v_u32m4_f32m4(__riscv_vsll_vx_u32m4(k, 23, vl)), vl);
}

/* x / (1 + e^u), the end of silu and of gelu */
NB_INLINE vfloat32m4_t nb_vgate(vfloat32m4_t x, vfloat32m4_t u, size_t vl) {
    return __riscv_vfdiv_vv_f32m4(x, __riscv_vfadd_vf_f32m4(nb_vexp(u, vl), 1.0f, vl), vl);
}

/* nb_fold of 16 lanes */
NB_INLINE float nb_vfold(vfloat32m4_t lanes) {
    lanes = __riscv_vfadd_vv_f32m4(lanes, __riscv_vslidedown_vx_f32m4(lanes, 8, 8), 8);
    vfloat32m2_t eight = __riscv_vlmul_trunc_v_f32m4_f32m2(lanes);
    eight = __riscv_vfadd_vv_f32m2(eight, __riscv_vslidedown_vx_f32m2(eight, 4, 4), 4);
    vfloat32m1_t four = __riscv_vlmul_trunc_v_f32m2_f32m1(eight);
    four = __riscv_vfadd_vv_f32m1(four, __riscv_vslidedown_vx_f32m1(four, 2, 2), 2);
    four = __riscv_vfadd_vv_f32m1(four, __riscv_vslidedown_vx_f32m1(four, 1, 1), 1);
    return __riscv_vfmv_f_s_f32m1_f32(four);
}

/* Finite half floats. Widened by 2^13, sign, exponent and fraction lie where a float has them, but for three copies of
 * the sign and the bias of the exponent; subnormals become subnormals, and 2^112 makes everything exact. */
NB_INLINE vfloat32m4_t nb_vhalves(const void *at, size_t vl) {
    const vint32m4_t wide = __riscv_vwmul_vx_i32m4(__riscv_vle16_v_i16m2(at, vl), 1 << 13, vl);
    const vint32m4_t bits = __riscv_vand_vx_i32m4(wide, (int32_t)0x8fffffffu, vl);
    return __riscv_vfmul_vf_f32m4(__riscv_vreinterpret_v_i32m4_f32m4(bits), 0x1p112f, vl);
}

/* max(m, max|x|) of n numbers, none a NaN */
NB_INLINE float nb_vtop(const float *x, size_t n) {
    vfloat32m1_t top = __riscv_vfmv_s_f_f32m1(0, 1);
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m8(n - i);
        top = __riscv_vfredmax_vs_f32m8_f32m1(__riscv_vfabs_v_f32m8(__riscv_vle32_v_f32m8(x + i, vl), vl), top, vl);
    }
    return __riscv_vfmv_f_s_f32m1_f32(top);
}

/* nb_to_int8 of math.h */
NB_INLINE float nb_vto_int8(int8_t *q, const float *x, size_t n) {
    const float m = nb_vtop(x, n), inverse = m < NB_TINY ? 0.0f : 127.0f / m;
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m8(n - i);
        const vfloat32m8_t scaled = __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(x + i, vl), inverse, vl);
        const vint16m4_t words = __riscv_vfncvt_x_f_w_i16m4(scaled, vl);
        __riscv_vse8_v_i8m2(q + i, __riscv_vncvt_x_x_w_i8m2(words, vl), vl);
    }
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

/* Row factors fl(f16 row_scale * row_mul) of the 16 rows of a panel, times their sums, to y */
NB_INLINE void nb_vstore_rows(float *y, vfloat32m4_t sums, const uint8_t *panel, float row_mul) {
    const vfloat32m4_t factor = __riscv_vfmul_vf_f32m4(nb_vhalves(panel, NB_PANEL), row_mul, NB_PANEL);
    __riscv_vse32_v_f32m4(y, __riscv_vfmul_vv_f32m4(sums, factor, NB_PANEL), NB_PANEL);
}

#endif
