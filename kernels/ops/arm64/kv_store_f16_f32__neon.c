/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as half floats with FCVTN, rounded to nearest even.
 * Needs: the floating-point control register at its default (no flush to zero, IEEE half floats). */
#include "ops/arm64/neon.h"

NB_INLINE void halves(uint16_t *to, const float *from, uint32_t n) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
    for (; i < n; i++) to[i] = nb_to_f16(from[i]);
}

nb_kv_store_fn nb_kv_store_f16_f32__neon;
void nb_kv_store_f16_f32__neon(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    halves((uint16_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    halves((uint16_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
