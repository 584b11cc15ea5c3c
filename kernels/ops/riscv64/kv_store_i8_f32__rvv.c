/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as int8 with one scale each, RVV. Needs: the rounding mode is the default one. */
#include "ops/riscv64/rvv.h"

nb_kv_store_fn nb_kv_store_i8_f32__rvv;
void nb_kv_store_i8_f32__rvv(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    kv->k_scale[pos] = nb_vto_int8((int8_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    kv->v_scale[pos] = nb_vto_int8((int8_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
