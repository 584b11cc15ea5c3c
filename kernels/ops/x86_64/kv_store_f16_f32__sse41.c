/* SPDX-License-Identifier: Apache-2.0
 * Stores one position's key and value as half floats, SSE4.1: nb_to_f16 of math.h four at a time, each of its cases
 * computed for all lanes and chosen by comparison. */
#include "ops/x86_64/sse41.h"

NB_INLINE __m128i all(int32_t x) { return _mm_set1_epi32(x); }

/* Four half floats in the low words of dwords */
NB_INLINE __m128i four(__m128 x) {
    const __m128i bits = _mm_castps_si128(x), magnitude = _mm_and_si128(bits, all(0x7fffffff));
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(magnitude, 13), all(1)); /* ties go to even */
    const __m128i normal = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(magnitude, odd), all(0x0fff - 0x38000000)), 13);
    const __m128 moved = _mm_add_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0.5f));
    const __m128i subnormal = _mm_sub_epi32(_mm_castps_si128(moved), all(0x3f000000));
    const __m128i nan = _mm_or_si128(_mm_and_si128(_mm_srli_epi32(magnitude, 13), all(0x03ff)), all(0x7e00));
    __m128i half = _mm_blendv_epi8(normal, subnormal, _mm_cmpgt_epi32(all(0x38800000), magnitude));
    half = _mm_blendv_epi8(half, all(0x7c00), _mm_cmpgt_epi32(magnitude, all(0x477fefff)));
    half = _mm_blendv_epi8(half, nan, _mm_cmpgt_epi32(magnitude, all(0x7f800000)));
    return _mm_or_si128(half, _mm_and_si128(_mm_srli_epi32(bits, 16), all(0x8000)));
}

NB_INLINE void halves(uint16_t *to, const float *from, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        nb_store4(to + i, _mm_packus_epi32(four(_mm_loadu_ps(from + i)), four(_mm_loadu_ps(from + i + 4))));
    for (; i < n; i++) to[i] = nb_to_f16(from[i]);
}

nb_kv_store_fn nb_kv_store_f16_f32__sse41;
void nb_kv_store_f16_f32__sse41(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v) {
    halves((uint16_t *)kv->k + (size_t)pos * kv->head_dim, k, kv->head_dim);
    halves((uint16_t *)kv->v + (size_t)pos * kv->head_dim, v, kv->head_dim);
}
