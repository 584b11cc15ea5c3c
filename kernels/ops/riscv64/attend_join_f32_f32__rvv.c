/* SPDX-License-Identifier: Apache-2.0
 * Joins the ranges of one head, RVV: eight registers of channels through 16 ranges at a time, whose weights come from one
 * exp; with more ranges the sums so far wait in y. */
#include "ops/riscv64/rvv.h"

nb_attend_join_fn nb_attend_join_f32_f32__rvv;
void nb_attend_join_f32_f32__rvv(float *y, uint32_t head_dim, uint32_t n, const float *max, const float *sum, const float *out,
                                 size_t stride) {
    float top = max[0], total = 0;
    for (uint32_t r = 1; r < n; r++) top = max[r] > top ? max[r] : top;
    for (uint32_t r0 = 0; r0 < n; r0 += NB_LANES, out += NB_LANES * stride) {
        const uint32_t count = n - r0 < NB_LANES ? n - r0 : NB_LANES;
        float weight[NB_LANES];
        const vfloat32m4_t less = __riscv_vfsub_vf_f32m4(__riscv_vle32_v_f32m4(max + r0, count), top, count);
        __riscv_vse32_v_f32m4(weight, nb_vexp(less, count), count);
        for (uint32_t r = 0; r < count; r++) total += sum[r0 + r] * weight[r];
        for (size_t c = 0, vl; c < head_dim; c += vl) {
            vl = __riscv_vsetvl_e32m8(head_dim - c);
            vfloat32m8_t acc = r0 ? __riscv_vle32_v_f32m8(y + c, vl) : __riscv_vfmv_v_f_f32m8(0, vl);
            for (uint32_t r = 0; r < count; r++) {
                const vfloat32m8_t part = __riscv_vle32_v_f32m8(out + r * stride + c, vl);
                acc = __riscv_vfadd_vv_f32m8(acc, __riscv_vfmul_vf_f32m8(part, weight[r], vl), vl);
            }
            __riscv_vse32_v_f32m8(y + c, acc, vl);
        }
    }
    const float inverse = 1.0f / total;
    for (size_t c = 0, vl; c < head_dim; c += vl) {
        vl = __riscv_vsetvl_e32m8(head_dim - c);
        __riscv_vse32_v_f32m8(y + c, __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(y + c, vl), inverse, vl), vl);
    }
}
