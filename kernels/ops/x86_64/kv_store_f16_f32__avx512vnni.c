/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as half floats with vcvtps2ph, rounded to nearest even. */
#include "ops/x86_64/avx512.h"

NB_INLINE void halves(uint16_t *to, const float *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 some = nb_first16(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(some, from + i);
        _mm256_mask_storeu_epi16(to + i, some, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

nb_kv_store_fn nb_kv_store_f16_f32__avx512vnni;
void nb_kv_store_f16_f32__avx512vnni(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    halves((uint16_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    halves((uint16_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
