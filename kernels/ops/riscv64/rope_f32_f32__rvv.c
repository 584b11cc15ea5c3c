/* SPDX-License-Identifier: Apache-2.0
 * Rotates the pairs (i, i + rot/2) of each head, RVV, as many pairs at a time as four registers hold. */
#include "ops/riscv64/rvv.h"

nb_rope_fn nb_rope_f32_f32__rvv;
void nb_rope_f32_f32__rvv(float *x, uint32_t heads, uint32_t head_dim, uint32_t rot, const float *cos, const float *sin) {
    const size_t half = rot / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim)
        for (size_t i = 0, vl; i < half; i += vl) {
            vl = __riscv_vsetvl_e32m4(half - i);
            const vfloat32m4_t c = __riscv_vle32_v_f32m4(cos + i, vl), s = __riscv_vle32_v_f32m4(sin + i, vl);
            const vfloat32m4_t x1 = __riscv_vle32_v_f32m4(x + i, vl), x2 = __riscv_vle32_v_f32m4(x + half + i, vl);
            const vfloat32m4_t y1 =
                __riscv_vfsub_vv_f32m4(__riscv_vfmul_vv_f32m4(x1, c, vl), __riscv_vfmul_vv_f32m4(x2, s, vl), vl);
            const vfloat32m4_t y2 =
                __riscv_vfadd_vv_f32m4(__riscv_vfmul_vv_f32m4(x2, c, vl), __riscv_vfmul_vv_f32m4(x1, s, vl), vl);
            __riscv_vse32_v_f32m4(x + i, y1, vl);
            __riscv_vse32_v_f32m4(x + half + i, y2, vl);
        }
}
