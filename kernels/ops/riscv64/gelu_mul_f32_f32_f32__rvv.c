/* SPDX-License-Identifier: Apache-2.0
 * y = gelu(gate) * up in the tanh form, RVV: gelu(x) = x / (1 + e^-2u), u = 0.79788 * (x + 0.044715 * x^3). */
#include "ops/riscv64/rvv.h"

nb_gated_fn nb_gelu_mul_f32_f32_f32__rvv;
void nb_gelu_mul_f32_f32_f32__rvv(float *y, const float *gate, const float *up, uint32_t n) {
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m4(n - i);
        const vfloat32m4_t x = __riscv_vle32_v_f32m4(gate + i, vl);
        const vfloat32m4_t cube = __riscv_vfmul_vv_f32m4(__riscv_vfmul_vv_f32m4(x, x, vl), x, vl);
        const vfloat32m4_t u =
            __riscv_vfmul_vf_f32m4(__riscv_vfadd_vv_f32m4(x, __riscv_vfmul_vf_f32m4(cube, 0.044715f, vl), vl), 0.7978845608f, vl);
        const vfloat32m4_t gelu = nb_vgate(x, __riscv_vfmul_vf_f32m4(u, -2.0f, vl), vl);
        __riscv_vse32_v_f32m4(y + i, __riscv_vfmul_vv_f32m4(gelu, __riscv_vle32_v_f32m4(up + i, vl), vl), vl);
    }
}
