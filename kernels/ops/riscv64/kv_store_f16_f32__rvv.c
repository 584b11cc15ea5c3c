/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as half floats rounded to nearest even, RVV: nb_to_f16 of math.h with its four
 * cases as merges, because V 1.0 alone has no conversion to half floats. */
#include "ops/riscv64/rvv.h"

NB_INLINE vuint16m2_t to_halves(vuint32m4_t bits, size_t vl) {
    const vuint32m4_t m = __riscv_vand_vx_u32m4(bits, 0x7fffffffu, vl);
    const vuint32m4_t sign = __riscv_vand_vx_u32m4(__riscv_vsrl_vx_u32m4(bits, 16, vl), 0x8000u, vl);
    const vuint32m4_t cut = __riscv_vsrl_vx_u32m4(m, 13, vl);
    vuint32m4_t half = __riscv_vadd_vv_u32m4(m, __riscv_vand_vx_u32m4(cut, 1, vl), vl);
    half = __riscv_vsrl_vx_u32m4(__riscv_vadd_vx_u32m4(half, 0x0fffu - 0x38000000u, vl), 13, vl);
    /* below 2^-14: 0.5 has the unit in the last place of the subnormals */
    const vfloat32m4_t aligned = __riscv_vfadd_vf_f32m4(__riscv_vreinterpret_v_u32m4_f32m4(m), 0.5f, vl);
    const vuint32m4_t small = __riscv_vsub_vx_u32m4(__riscv_vreinterpret_v_f32m4_u32m4(aligned), 0x3f000000u, vl);
    half = __riscv_vmerge_vvm_u32m4(half, small, __riscv_vmsltu_vx_u32m4_b8(m, 0x38800000u, vl), vl);
    half = __riscv_vmerge_vxm_u32m4(half, 0x7c00u, __riscv_vmsgtu_vx_u32m4_b8(m, 0x477fefffu, vl), vl);
    const vuint32m4_t nan = __riscv_vor_vx_u32m4(__riscv_vand_vx_u32m4(cut, 0x03ffu, vl), 0x7e00u, vl);
    half = __riscv_vmerge_vvm_u32m4(half, nan, __riscv_vmsgtu_vx_u32m4_b8(m, 0x7f800000u, vl), vl);
    return __riscv_vncvt_x_x_w_u16m2(__riscv_vor_vv_u32m4(half, sign, vl), vl);
}

NB_INLINE void halves(uint16_t *to, const float *from, size_t n) {
    for (size_t i = 0, vl; i < n; i += vl) {
        vl = __riscv_vsetvl_e32m4(n - i);
        const vuint32m4_t bits = __riscv_vreinterpret_v_f32m4_u32m4(__riscv_vle32_v_f32m4(from + i, vl));
        __riscv_vse16_v_u16m2(to + i, to_halves(bits, vl), vl);
    }
}

nb_kv_store_fn nb_kv_store_f16_f32__rvv;
void nb_kv_store_f16_f32__rvv(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    halves((uint16_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    halves((uint16_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
