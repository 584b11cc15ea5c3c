/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as half floats, rounded to nearest even. */
#include "ops/scalar/math.h"

nb_kv_store_fn nb_kv_store_f16_f32__scalar;
void nb_kv_store_f16_f32__scalar(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    uint16_t *k16 = (uint16_t *)kv->k + (size_t)pos * kv->head_dim, *v16 = (uint16_t *)kv->v + (size_t)pos * kv->head_dim;
    for (uint32_t i = 0; i < kv->head_dim; i++) k16[i] = nb_to_f16(k[i]);
    for (uint32_t i = 0; i < kv->head_dim; i++) v16[i] = nb_to_f16(v[i]);
}
