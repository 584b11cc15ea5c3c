/* SPDX-License-Identifier: Apache-2.0
 * y = x / sqrt(mean(x * x) + eps) * w, RVV: the 16 virtual lanes are one register group of exactly 16 elements at every
 * VLEN; a tail leaves the lanes past it alone. */
#include <math.h>

#include "ops/riscv64/rvv.h"

nb_rmsnorm_fn nb_rmsnorm_f32_f32_f32__rvv;
void nb_rmsnorm_f32_f32_f32__rvv(float *y, const float *x, const float *w, uint32_t n, float eps) {
    vfloat32m4_t lanes = __riscv_vfmv_v_f_f32m4(0, NB_LANES);
    for (size_t i = 0; i < n; i += NB_LANES) {
        const size_t vl = n - i < NB_LANES ? n - i : NB_LANES;
        const vfloat32m4_t a = __riscv_vle32_v_f32m4(x + i, vl);
        lanes = __riscv_vfadd_vv_f32m4_tu(lanes, lanes, __riscv_vfmul_vv_f32m4(a, a, vl), vl);
    }
    const float inv = 1.0f / sqrtf(nb_vfold(lanes) / (float)n + eps);
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m8(n - i);
        const vfloat32m8_t scaled = __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(x + i, vl), inv, vl);
        __riscv_vse32_v_f32m8(y + i, __riscv_vfmul_vv_f32m8(scaled, __riscv_vle32_v_f32m8(w + i, vl), vl), vl);
    }
}
