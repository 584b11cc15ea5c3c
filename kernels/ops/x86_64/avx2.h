/* SPDX-License-Identifier: Apache-2.0
 * What the AVX2 kernels share: math.h eight lanes at a time, and the int8 product step. */
#ifndef NB_OPS_AVX2_H
#define NB_OPS_AVX2_H

#ifndef __AVX2__
#error "an AVX2 kernel compiled without the flags of its level"
#endif

#include <immintrin.h>

#include "ops/scalar/math.h"
#include "ops/x86_64/unroll.h"

/* The dword at p in all lanes: four neighbouring int8 activations, or one number. */
NB_INLINE __m256i nb_dword8(const void *p) {
    int32_t dword;
    memcpy(&dword, p, sizeof dword);
    return _mm256_set1_epi32(dword);
}

NB_INLINE __m256i nb_load8(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Eight half floats */
NB_INLINE __m256 nb_halves8(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

/* nb_exp of math.h; the maximum and minimum instructions pick the second operand on NaN, as the comparisons there do. */
NB_INLINE __m256 nb_exp8(__m256 x) {
    x = _mm256_max_ps(x, _mm256_set1_ps(-87.0f));
    x = _mm256_min_ps(x, _mm256_set1_ps(88.0f));
    const __m256 round = _mm256_set1_ps(NB_ROUND);
    const __m256 t = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), round);
    const __m256 n = _mm256_sub_ps(t, round);
    const __m256i k = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(NB_ROUND_BITS - 127));
    __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(0.693359375f)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(-2.12194440e-4f)));
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(5.0000001201e-1f));
    __m256 y = _mm256_mul_ps(p, _mm256_mul_ps(r, r));
    y = _mm256_add_ps(y, r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(k, 23)));
}

/* nb_softcap of eight numbers */
NB_INLINE __m256 nb_softcap8(__m256 x, float cap) {
    const __m256 u = _mm256_div_ps(x, _mm256_set1_ps(cap)), one = _mm256_set1_ps(1.0f);
    const __m256 e = nb_exp8(_mm256_add_ps(u, u));
    return _mm256_mul_ps(_mm256_set1_ps(cap), _mm256_div_ps(_mm256_sub_ps(e, one), _mm256_add_ps(e, one)));
}

/* nb_fold of lanes 0..7 in `low` and 8..15 in `high` */
NB_INLINE float nb_fold16(__m256 low, __m256 high) {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

NB_INLINE __m256 nb_abs8(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }

/* The largest lane; only for numbers whose order decides alone (no NaN, zeros of one sign). */
NB_INLINE float nb_max8(__m256 x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Group scales of eight rows, each twice as int16: the second factor of vpmaddwd. */
NB_INLINE __m256i nb_pairs8(const uint8_t *group_scale) {
    int64_t eight;
    memcpy(&eight, group_scale, sizeof eight);
    const __m256i each_twice = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, /* rows 0..3 */
                                                4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), each_twice);
}

/* The table of a 4-bit format + 64, for vpshufb: unsigned values 0..127 */
NB_INLINE __m256i nb_table8(const struct nb_mat *w) {
    const __m128i table = _mm_loadu_si128((const __m128i *)w->table);
    return _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(64)));
}

/* acc[row] += group_scale[row] * sum over 4 k of u[row][k] * a[k]. vpmaddubsw sums two products in int16, which cannot
 * saturate below 128 * 127 * 2 = 32,512; vpmaddwd then applies the integer group scale while it sums the two halves. */
NB_INLINE __m256i nb_step8(__m256i acc, __m256i u, __m256i a, __m256i pairs) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, a), pairs));
}

/* The same for signed weights: |w| times a with w's sign. |-128| reads as 128 and does not saturate either. */
NB_INLINE __m256i nb_signed_step8(__m256i acc, __m256i w, __m256i a, __m256i pairs) {
    return nb_step8(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(a, w), pairs);
}

/* -sum of k 0..15 in the low and of k 16..31 in the high int16 of every dword, for 32 activations at q. */
NB_INLINE __m256i nb_minus_sums8(const int8_t *q) {
    const __m256i bytes = _mm256_xor_si256(nb_load8(q), _mm256_set1_epi8(-128)); /* q + 128 */
    __m256i sums = _mm256_sad_epu8(bytes, _mm256_setzero_si256());               /* 4 x 8 of them */
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));             /* lane 0: low k, lane 1: high k */
    sums = _mm256_sub_epi32(_mm256_set1_epi32(16 * 128), sums);
    const __m256i low = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(sums, 0), 0x00);
    const __m256i high = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(sums, 0), 0xaa);
    return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
}

#endif
