/* SPDX-License-Identifier: Apache-2.0
 * What the SSE4.1 kernels share: math.h four lanes at a time, half floats without F16C, and the int8 product step. */
#ifndef NB_OPS_SSE41_H
#define NB_OPS_SSE41_H

#ifndef __SSE4_1__
#error "an SSE4.1 kernel compiled without the flags of its level"
#endif

#include <smmintrin.h>

#include "ops/scalar/math.h"
#include "ops/x86_64/unroll.h"

NB_INLINE __m128i nb_load4(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
NB_INLINE void nb_store4(void *p, __m128i x) { _mm_storeu_si128((__m128i *)p, x); }

/* Quad i of 16 activations in all lanes. i is a constant once the loop around this is unrolled, as pshufd needs it. */
NB_INLINE __m128i nb_quad4(__m128i q, int i) {
    switch (i) {
    case 0: return _mm_shuffle_epi32(q, 0x00);
    case 1: return _mm_shuffle_epi32(q, 0x55);
    case 2: return _mm_shuffle_epi32(q, 0xaa);
    default: return _mm_shuffle_epi32(q, 0xff);
    }
}

/* Dwords 0..3 or 4..7 whose upper words are `high` and whose lower words are `low` */
NB_INLINE __m128 nb_join4(__m128i low, __m128i high, int upper) {
    return _mm_castsi128_ps(upper ? _mm_unpackhi_epi16(low, high) : _mm_unpacklo_epi16(low, high));
}

/* nb_from_f16 of eight half floats (a NaN stays as it is). Word by word: the upper half of a float is sign, exponent + 112
 * and seven bits, the lower half the other three. Zeros and subnormals, rare, are read with exponent -14 and a leading 1,
 * which is then subtracted; infinities and NaN get the exponent 255. */
NB_INLINE void nb_halves4x2(__m128 to[2], const void *p) {
    const __m128i half = nb_load4(p), low = _mm_slli_epi16(half, 13), rebias = _mm_set1_epi16(0x3800);
    const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
    const __m128i above = _mm_sub_epi16(magnitude, _mm_set1_epi16(0x0400)); /* 0..0x77ff: normal */
    const __m128i normal = _mm_cmpeq_epi16(_mm_min_epu16(above, _mm_set1_epi16(0x77ff)), above);
    if (__builtin_expect(_mm_movemask_epi8(normal) == 0xffff, 1)) {
        const __m128i high = _mm_add_epi16(_mm_and_si128(_mm_srai_epi16(half, 3), _mm_set1_epi16((short)0x8fff)), rebias);
        NB_UNROLL
        for (int i = 0; i < 2; i++) to[i] = nb_join4(low, high, i);
        return;
    }
    const __m128i small = _mm_cmpgt_epi16(_mm_set1_epi16(0x0400), magnitude);
    const __m128i huge = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7bff));
    __m128i high = _mm_add_epi16(_mm_srli_epi16(magnitude, 3), rebias);
    high = _mm_add_epi16(high, _mm_and_si128(small, _mm_set1_epi16(0x0080)));
    high = _mm_add_epi16(high, _mm_and_si128(huge, rebias));
    const __m128i one = _mm_and_si128(small, _mm_set1_epi16(0x3880)), zero = _mm_setzero_si128(); /* 2^-14 */
    NB_UNROLL
    for (int i = 0; i < 2; i++) {
        const __m128 sign = nb_join4(zero, _mm_xor_si128(half, magnitude), i);
        to[i] = _mm_or_ps(_mm_sub_ps(nb_join4(low, high, i), nb_join4(zero, one, i)), sign);
    }
}

/* nb_exp of math.h; the maximum and minimum instructions pick the second operand on NaN, as the comparisons there do. */
NB_INLINE __m128 nb_exp4(__m128 x) {
    x = _mm_max_ps(x, _mm_set1_ps(-87.0f));
    x = _mm_min_ps(x, _mm_set1_ps(88.0f));
    const __m128 round = _mm_set1_ps(NB_ROUND);
    const __m128 t = _mm_add_ps(_mm_mul_ps(x, _mm_set1_ps(1.44269504f)), round);
    const __m128 n = _mm_sub_ps(t, round);
    const __m128i k = _mm_sub_epi32(_mm_castps_si128(t), _mm_set1_epi32(NB_ROUND_BITS - 127));
    __m128 r = _mm_sub_ps(x, _mm_mul_ps(n, _mm_set1_ps(0.693359375f)));
    r = _mm_sub_ps(r, _mm_mul_ps(n, _mm_set1_ps(-2.12194440e-4f)));
    __m128 p = _mm_set1_ps(1.9875691500e-4f);
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.3981999507e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(8.3334519073e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(4.1665795894e-2f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.6666665459e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(5.0000001201e-1f));
    __m128 y = _mm_mul_ps(p, _mm_mul_ps(r, r));
    y = _mm_add_ps(y, r);
    y = _mm_add_ps(y, _mm_set1_ps(1.0f));
    return _mm_mul_ps(y, _mm_castsi128_ps(_mm_slli_epi32(k, 23)));
}

/* nb_softcap of four numbers */
NB_INLINE __m128 nb_softcap4(__m128 x, float cap) {
    const __m128 u = _mm_div_ps(x, _mm_set1_ps(cap)), one = _mm_set1_ps(1.0f);
    const __m128 e = nb_exp4(_mm_add_ps(u, u));
    return _mm_mul_ps(_mm_set1_ps(cap), _mm_div_ps(_mm_sub_ps(e, one), _mm_add_ps(e, one)));
}

/* nb_fold of 16 lanes, four in each register */
NB_INLINE float nb_fold16(const __m128 lane[4]) {
    const __m128 four = _mm_add_ps(_mm_add_ps(lane[0], lane[2]), _mm_add_ps(lane[1], lane[3]));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

NB_INLINE __m128 nb_abs4(__m128 x) { return _mm_and_ps(x, _mm_castsi128_ps(_mm_set1_epi32(0x7fffffff))); }

/* The largest lane; only for numbers whose order decides alone (no NaN, zeros of one sign). */
NB_INLINE float nb_max4(__m128 x) {
    const __m128 two = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Eight numbers times `by`, to int16. cvtps2dq rounds to nearest even in the default rounding mode, as adding 1.5 * 2^23. */
NB_INLINE __m128i nb_round8(const float *x, __m128 by) {
    return _mm_packs_epi32(_mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x), by)),
                           _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + 4), by)));
}

/* Group scales of the 16 rows, each twice as int16: the second factor of pmaddwd. */
NB_INLINE void nb_pairs4(__m128i pairs[4], const uint8_t *group_scale) {
    NB_UNROLL
    for (int i = 0; i < 2; i++) {
        const __m128i eight = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(group_scale + 8 * i)));
        pairs[2 * i] = _mm_unpacklo_epi16(eight, eight);
        pairs[2 * i + 1] = _mm_unpackhi_epi16(eight, eight);
    }
}

/* The table of a 4-bit format + 64, for pshufb: unsigned values 0..127 */
NB_INLINE __m128i nb_table4(const struct nb_mat *w) { return _mm_add_epi8(nb_load4(w->table), _mm_set1_epi8(64)); }

/* acc[row] += group_scale[row] * sum over 4 k of u[row][k] * a[k]. pmaddubsw sums two products in int16, which cannot
 * saturate below 128 * 127 * 2 = 32,512; pmaddwd then applies the integer group scale while it sums the two halves. */
NB_INLINE __m128i nb_step4(__m128i acc, __m128i u, __m128i a, __m128i pairs) {
    return _mm_add_epi32(acc, _mm_madd_epi16(_mm_maddubs_epi16(u, a), pairs));
}

/* The same for signed weights: |w| times a with w's sign. |-128| reads as 128 and does not saturate either. */
NB_INLINE __m128i nb_signed_step4(__m128i acc, __m128i w, __m128i a, __m128i pairs) {
    return nb_step4(acc, _mm_abs_epi8(w), _mm_sign_epi8(a, w), pairs);
}

/* -sum of k 0..15 in the low and of k 16..31 in the high int16, for 32 activations at q */
NB_INLINE int32_t nb_minus_sums4(const int8_t *q) {
    const __m128i flip = _mm_set1_epi8(-128), zero = _mm_setzero_si128(); /* q + 128 is unsigned */
    __m128i sums = _mm_packs_epi32(_mm_sad_epu8(_mm_xor_si128(nb_load4(q), flip), zero),
                                   _mm_sad_epu8(_mm_xor_si128(nb_load4(q + 16), flip), zero)); /* words 0, 2 and 4, 6 */
    sums = _mm_add_epi16(sums, _mm_srli_epi64(sums, 32));                                      /* words 0 and 4 */
    sums = _mm_sub_epi16(_mm_set1_epi16(16 * 128), _mm_shuffle_epi32(sums, 0x08));             /* words 0 and 2 */
    return _mm_cvtsi128_si32(_mm_shufflelo_epi16(sums, 0x08));
}

#endif
