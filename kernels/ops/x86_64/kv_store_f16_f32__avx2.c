/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as half floats with vcvtps2ph (F16C), rounded to nearest even. */
#include "ops/x86_64/avx2.h"

NB_INLINE void halves(uint16_t *to, const float *from, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    for (; i < n; i++) to[i] = nb_to_f16(from[i]);
}

nb_kv_store_fn nb_kv_store_f16_f32__avx2;
void nb_kv_store_f16_f32__avx2(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    halves((uint16_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    halves((uint16_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
