/* SPDX-License-Identifier: Apache-2.0
 * y = gate / (1 + e^-gate) * up, RVV. */
#include "ops/riscv64/rvv.h"

nb_gated_fn nb_silu_mul_f32_f32_f32__rvv;
void nb_silu_mul_f32_f32_f32__rvv(float *y, const float *gate, const float *up, uint32_t n) {
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m4(n - i);
        const vfloat32m4_t x = __riscv_vle32_v_f32m4(gate + i, vl), silu = nb_vgate(x, __riscv_vfneg_v_f32m4(x, vl), vl);
        __riscv_vse32_v_f32m4(y + i, __riscv_vfmul_vv_f32m4(silu, __riscv_vle32_v_f32m4(up + i, vl), vl), vl);
    }
}
