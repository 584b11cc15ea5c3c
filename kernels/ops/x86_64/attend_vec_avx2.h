/* SPDX-License-Identifier: Apache-2.0
 * The vectors of attend_run.h on AVX2. */
#ifndef NB_OPS_ATTEND_VEC_AVX2_H
#define NB_OPS_ATTEND_VEC_AVX2_H

#include "ops/x86_64/avx2.h"

enum { NB_WIDTH = 8 };
typedef __m256 nb_vec;

NB_INLINE nb_vec nb_v_all(float x) { return _mm256_set1_ps(x); }
NB_INLINE nb_vec nb_v_load(const float *x) { return _mm256_loadu_ps(x); }
NB_INLINE void nb_v_store(float *to, nb_vec x) { _mm256_storeu_ps(to, x); }
NB_INLINE nb_vec nb_v_add(nb_vec x, nb_vec y) { return _mm256_add_ps(x, y); }
NB_INLINE nb_vec nb_v_sub(nb_vec x, nb_vec y) { return _mm256_sub_ps(x, y); }
NB_INLINE nb_vec nb_v_mul(nb_vec x, nb_vec y) { return _mm256_mul_ps(x, y); }
NB_INLINE nb_vec nb_v_max(nb_vec x, nb_vec y) { return _mm256_max_ps(x, y); }
NB_INLINE nb_vec nb_v_exp(nb_vec x) { return nb_exp8(x); }
NB_INLINE nb_vec nb_v_softcap(nb_vec x, float cap) { return nb_softcap8(x, cap); }
NB_INLINE void nb_v_fetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }

/* Eight values of a cache */
NB_INLINE nb_vec nb_v_values(const void *v, uint32_t type) {
    if (type == NB_KV_F16) return nb_halves8(v);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)v)));
}

NB_INLINE float nb_v_largest(nb_vec x) { return nb_max8(x); }
NB_INLINE float nb_v_fold16(const nb_vec lanes[2]) { return nb_fold16(lanes[0], lanes[1]); }

/* nb_fold of four times 16 lanes: acc[d][0] lanes 0..7, acc[d][1] lanes 8..15. */
NB_INLINE __m128 nb_v_fold4(nb_vec acc[4][2]) {
    __m128 four[4];
    NB_UNROLL
    for (int d = 0; d < 4; d++) {
        const __m256 eight = _mm256_add_ps(acc[d][0], acc[d][1]);
        four[d] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(four[2], four[3]), _mm_movehl_ps(four[3], four[2]));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

/* x in the lanes whose positions at .. at + 7 lie in [from, to), else `other` */
NB_INLINE nb_vec nb_v_seen(nb_vec x, nb_vec other, uint32_t at, uint32_t from, uint32_t to) {
    const __m256i p = _mm256_add_epi32(_mm256_set1_epi32((int)at), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i early = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)from), p),
                  here = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)to), p);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(early, here)));
}

#endif
