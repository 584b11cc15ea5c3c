/* SPDX-License-Identifier: Apache-2.0
 * Activations to int8, RVV, one block of 32 in eight registers at VLEN 128. vfncvt rounds to nearest even, as adding
 * 1.5 * 2^23 does. Needs: the rounding mode is the default one. */
#include "ops/riscv64/rvv.h"

nb_quantize_fn nb_quantize_q8b32_f32__rvv;
void nb_quantize_q8b32_f32__rvv(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x, uint32_t n) {
    const size_t vl = NB_BLOCK;
    for (uint32_t b = block0; b < block1; b++) {
        const size_t e = ((size_t)(token / a->tile) * a->blocks + b) * a->tile + token % a->tile, at = (size_t)b * NB_BLOCK;
        vfloat32m8_t v = __riscv_vfmv_v_f_f32m8(0, vl);
        if (at < n) v = __riscv_vle32_v_f32m8_tu(v, x + at, n - at < vl ? n - at : vl);
        const vfloat32m1_t top = __riscv_vfredmax_vs_f32m8_f32m1(__riscv_vfabs_v_f32m8(v, vl), __riscv_vfmv_s_f_f32m1(0, 1), vl);
        const float m = __riscv_vfmv_f_s_f32m1_f32(top), inverse = m < NB_TINY ? 0.0f : 127.0f / m;
        const vint16m4_t q = __riscv_vfncvt_x_f_w_i16m4(__riscv_vfmul_vf_f32m8(v, inverse, vl), vl);
        __riscv_vse8_v_i8m2(a->q + e * NB_BLOCK, __riscv_vncvt_x_x_w_i8m2(q, vl), vl);
        const vint32m1_t sum = __riscv_vwredsum_vs_i16m4_i32m1(q, __riscv_vmv_s_x_i32m1(0, 1), vl);
        a->scale[e] = m < NB_TINY ? 0.0f : m / 127.0f;
        a->bias[e] = -64 * __riscv_vmv_x_s_i32m1_i32(sum);
    }
}
