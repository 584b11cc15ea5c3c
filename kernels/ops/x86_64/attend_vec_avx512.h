/* SPDX-License-Identifier: Apache-2.0
 * The vectors of attend_run.h on AVX-512. */
#ifndef NB_OPS_ATTEND_VEC_AVX512_H
#define NB_OPS_ATTEND_VEC_AVX512_H

#include "ops/x86_64/avx512.h"

enum { NB_WIDTH = 16 };
typedef __m512 nb_vec;

NB_INLINE nb_vec nb_v_all(float x) { return _mm512_set1_ps(x); }
NB_INLINE nb_vec nb_v_load(const float *x) { return _mm512_loadu_ps(x); }
NB_INLINE void nb_v_store(float *to, nb_vec x) { _mm512_storeu_ps(to, x); }
NB_INLINE nb_vec nb_v_add(nb_vec x, nb_vec y) { return _mm512_add_ps(x, y); }
NB_INLINE nb_vec nb_v_sub(nb_vec x, nb_vec y) { return _mm512_sub_ps(x, y); }
NB_INLINE nb_vec nb_v_mul(nb_vec x, nb_vec y) { return _mm512_mul_ps(x, y); }
NB_INLINE nb_vec nb_v_max(nb_vec x, nb_vec y) { return _mm512_max_ps(x, y); }
NB_INLINE nb_vec nb_v_exp(nb_vec x) { return nb_exp16(x); }
NB_INLINE nb_vec nb_v_softcap(nb_vec x, float cap) { return nb_softcap16(x, cap); }
NB_INLINE float nb_v_largest(nb_vec x) { return nb_max16(x); }
NB_INLINE float nb_v_fold16(const nb_vec lanes[1]) { return nb_fold16(lanes[0]); }
NB_INLINE void nb_v_fetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }

/* Sixteen values of a cache */
NB_INLINE nb_vec nb_v_values(const void *v, uint32_t type) {
    if (type == NB_KV_F16) return nb_halves16(v);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)v)));
}

/* nb_fold of four times 16 lanes */
NB_INLINE __m128 nb_v_fold4(nb_vec acc[4][1]) {
    const __m128 a = nb_fold_to4(acc[0][0]), b = nb_fold_to4(acc[1][0]), c = nb_fold_to4(acc[2][0]), d = nb_fold_to4(acc[3][0]);
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)),
                 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

/* x in the lanes whose positions at .. at + 15 lie in [from, to), else `other` */
NB_INLINE nb_vec nb_v_seen(nb_vec x, nb_vec other, uint32_t at, uint32_t from, uint32_t to) {
    const int before_to = nb_first16(to > at ? to - at : 0), before_from = nb_first16(from > at ? from - at : 0);
    return _mm512_mask_blend_ps((__mmask16)(before_to & ~before_from), other, x);
}

#endif
