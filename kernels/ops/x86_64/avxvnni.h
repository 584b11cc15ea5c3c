/* SPDX-License-Identifier: Apache-2.0
 * What the AVX-VNNI kernels share: vpdpbusd on 256 bits, whose first factor is unsigned. Weights become value + 64 at
 * 4 bits and value + 128 at 8; what that adds, 64 or 128 times the sum of the activations, is taken off where a sum starts. */
#ifndef NB_OPS_AVXVNNI_H
#define NB_OPS_AVXVNNI_H

#ifndef __AVXVNNI__
#error "an AVX-VNNI kernel compiled without the flags of its level"
#endif

#include "ops/x86_64/avx2.h"

NB_INLINE void nb_store8(void *to, __m256i x) { _mm256_storeu_si256((__m256i *)to, x); }

/* sum[lane] += the four products of u, unsigned, and s, signed; exact. */
NB_INLINE __m256i nb_dot8(__m256i sum, __m256i u, __m256i s) { return _mm256_dpbusd_avx_epi32(sum, u, s); }

/* 8 rows x 4 k as unsigned bytes: quad j (0..7) of a block, whose codes of these rows start at `codes` */
NB_INLINE __m256i nb_unsigned8(const uint8_t *codes, int j, __m256i table, int bits) {
    const __m256i bytes = nb_load8(codes + 64 * (bits == 8 ? j : j % 4)), nibble = _mm256_set1_epi8(15);
    if (bits == 8) return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(j < 4 ? bytes : _mm256_srli_epi16(bytes, 4), nibble));
}

/* Group scales of eight rows, as int32 */
NB_INLINE __m256i nb_groups8(const uint8_t *group_scale) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)group_scale));
}

/* 64 times the sum of 16 activations, in all lanes */
NB_INLINE __m256i nb_sums8(const int8_t *q) {
    __m256i sum = _mm256_setzero_si256();
    NB_UNROLL
    for (int j = 0; j < 4; j++) sum = nb_dot8(sum, _mm256_set1_epi8(64), nb_dword8(q + 4 * j));
    return sum;
}

#endif
