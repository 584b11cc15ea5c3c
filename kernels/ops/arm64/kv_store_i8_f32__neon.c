/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as int8 with one scale each, NEON. */
#include "ops/arm64/neon.h"

nb_kv_store_fn nb_kv_store_i8_f32__neon;
void nb_kv_store_i8_f32__neon(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    kv->k_scale[pos] = nb_to_int8x8((int8_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    kv->v_scale[pos] = nb_to_int8x8((int8_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
