/* SPDX-License-Identifier: Apache-2.0
 * What the AVX-512 VNNI kernels share: math.h sixteen lanes at a time. One register is the 16 rows of a panel, or the
 * 16 virtual lanes of a sum; the ends of short vectors are masked loads and stores, which don't touch what is masked. */
#ifndef NB_OPS_AVX512_H
#define NB_OPS_AVX512_H

#ifndef __AVX512VNNI__
#error "an AVX-512 VNNI kernel compiled without the flags of its level"
#endif

#include <immintrin.h>

#include "ops/scalar/math.h"
#include "ops/x86_64/unroll.h"

/* Makes x a value that is finished here, in a register. Not a register where SIMDe stands in for AVX-512 (tests/checkops). */
#ifdef __AVX512F__
#define NB_DONE(x) __asm__ volatile("" : "+v"(x))
#else
#define NB_DONE(x) __asm__ volatile("" : "+m"(x))
#endif

/* The dword at p in all lanes: four neighbouring int8 activations, or one number. Becomes a {1to16} memory operand. */
NB_INLINE __m512i nb_dword16(const void *p) {
    int32_t dword;
    memcpy(&dword, p, sizeof dword);
    return _mm512_set1_epi32(dword);
}

NB_INLINE __m512i nb_load16(const void *p) { return _mm512_loadu_si512(p); }

/* The first `left` lanes, all of them from 16 on */
NB_INLINE __mmask16 nb_first16(size_t left) { return left < 16 ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff; }

/* Sixteen half floats */
NB_INLINE __m512 nb_halves16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

/* nb_exp of math.h; the maximum and minimum instructions pick the second operand on NaN, as the comparisons there do. */
NB_INLINE __m512 nb_exp16(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    const __m512 round = _mm512_set1_ps(NB_ROUND);
    const __m512 t = _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), round);
    const __m512 n = _mm512_sub_ps(t, round);
    const __m512i k = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(NB_ROUND_BITS - 127));
    __m512 r = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(0.693359375f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(-2.12194440e-4f)));
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(5.0000001201e-1f));
    __m512 y = _mm512_mul_ps(p, _mm512_mul_ps(r, r));
    y = _mm512_add_ps(y, r);
    y = _mm512_add_ps(y, _mm512_set1_ps(1.0f));
    return _mm512_mul_ps(y, _mm512_castsi512_ps(_mm512_slli_epi32(k, 23)));
}

/* nb_softcap of sixteen numbers */
NB_INLINE __m512 nb_softcap16(__m512 x, float cap) {
    const __m512 u = _mm512_div_ps(x, _mm512_set1_ps(cap)), one = _mm512_set1_ps(1.0f);
    const __m512 e = nb_exp16(_mm512_add_ps(u, u));
    return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_div_ps(_mm512_sub_ps(e, one), _mm512_add_ps(e, one)));
}

/* lane[i] + lane[i + 8], then 4: what is left of nb_fold are two steps over four lanes. */
NB_INLINE __m128 nb_fold_to4(__m512 x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

/* nb_fold of 16 lanes */
NB_INLINE float nb_fold16(__m512 x) {
    const __m128 four = nb_fold_to4(x), two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

NB_INLINE __m512 nb_abs16(__m512 x) { return _mm512_abs_ps(x); }

/* The sum of 16 integers */
NB_INLINE int32_t nb_sum16(__m512i x) {
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* The largest lane; only for numbers whose order decides alone (no NaN, zeros of one sign). */
NB_INLINE float nb_max16(__m512 x) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* nb_to_int8 of math.h. vcvtps2dq rounds to nearest even in the default rounding mode, as adding 1.5 * 2^23 does. */
NB_INLINE float nb_to_int8x16(int8_t *q, const float *x, uint32_t n) {
    __m512 top = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) top = _mm512_max_ps(nb_abs16(_mm512_maskz_loadu_ps(nb_first16(n - i), x + i)), top);
    const float m = nb_max16(top);
    const __m512 inverse = _mm512_set1_ps(m < NB_TINY ? 0.0f : 127.0f / m);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 some = nb_first16(n - i);
        const __m512i dwords = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + i), inverse));
        _mm_mask_storeu_epi8(q + i, some, _mm512_cvtepi32_epi8(dwords));
    }
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

/* Group scales of the 16 rows, as int32 */
NB_INLINE __m512i nb_group16(const uint8_t *group_scale) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)group_scale));
}

/* value + 64 of each code, in all four 128-bit parts: the table of vpshufb */
NB_INLINE __m512i nb_table16(const int8_t *table) {
    return _mm512_broadcast_i32x4(_mm_add_epi8(_mm_loadu_si128((const __m128i *)table), _mm_set1_epi8(64)));
}

/* One block as unsigned bytes, u[j] against the activations k = 4j..4j+3: value + 64 at 4 bits, value + 128 at 8. */
NB_INLINE void nb_unsigned16(__m512i u[8], const uint8_t *codes, __m512i table, int bits) {
    const __m512i nibble = _mm512_set1_epi8(15);
    NB_UNROLL
    for (int j = 0; j < 8; j++) {
        if (bits == 8) {
            u[j] = _mm512_xor_si512(nb_load16(codes + 64 * j), _mm512_set1_epi8(-128));
        } else {
            const __m512i bytes = nb_load16(codes + 64 * (j % 4));
            u[j] = _mm512_shuffle_epi8(table, _mm512_and_si512(j < 4 ? bytes : _mm512_srli_epi16(bytes, 4), nibble));
        }
    }
}

#endif
