/* SPDX-License-Identifier: Apache-2.0
 * Stands in for the compiler's <immintrin.h> in one test build: the AVX-512 and AVX-VNNI kernels in portable C (SIMDe), so
 * that their source can be compared with the scalar kernels on a machine without them. Below: what SIMDe 0.7.4 lacks. */
#ifndef NB_TEST_IMMINTRIN_H
#define NB_TEST_IMMINTRIN_H

/* In place of ops/x86_64/unroll.h: portable code for 128 unrolled vpdpbusd takes gcc minutes. */
#define NB_OPS_UNROLL_H
#define NB_INLINE static inline
#define NB_UNROLL

#undef __AVX512VNNI__ /* these are set on the command line for the kernels' own check; SIMDe must not believe them */
#undef __AVXVNNI__
#undef __AVX2__
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <string.h>

/* Each half through the narrower instruction that SIMDe has. */
static inline __m512 nb_join_ps(__m256 low, __m256 high) {
    return simde_mm512_insertf32x8(simde_mm512_castps256_ps512(low), high, 1);
}
static inline __m512i nb_join_si(__m256i low, __m256i high) {
    return simde_mm512_inserti64x4(simde_mm512_castsi256_si512(low), high, 1);
}
static inline __m256i nb_half_si(__m512i x, int high) {
    return high ? simde_mm512_extracti64x4_epi64(x, 1) : simde_mm512_extracti64x4_epi64(x, 0);
}

static inline __m512 nb_cvtph_ps(__m256i x) {
    return nb_join_ps(simde_mm256_cvtph_ps(simde_mm256_extracti128_si256(x, 0)),
                      simde_mm256_cvtph_ps(simde_mm256_extracti128_si256(x, 1)));
}
static inline __m512i nb_cvtepu8_epi32(__m128i x) {
    return nb_join_si(simde_mm256_cvtepu8_epi32(x), simde_mm256_cvtepu8_epi32(simde_mm_srli_si128(x, 8)));
}
static inline __m512i nb_cvtepi8_epi32(__m128i x) {
    return nb_join_si(simde_mm256_cvtepi8_epi32(x), simde_mm256_cvtepi8_epi32(simde_mm_srli_si128(x, 8)));
}
static inline __m512 nb_cvtepi32_ps(__m512i x) {
    return nb_join_ps(simde_mm256_cvtepi32_ps(nb_half_si(x, 0)), simde_mm256_cvtepi32_ps(nb_half_si(x, 1)));
}
/* SIMDe's own conversions to integers round ties as the platform's libm does; this one states it. */
static inline __m512i nb_cvtps_epi32(__m512 x) {
    float from[16];
    int32_t to[16];
    simde_mm512_storeu_ps(from, x);
    for (int i = 0; i < 16; i++) to[i] = (int32_t)__builtin_rintf(from[i]);
    return simde_mm512_loadu_si512(to);
}
#define __mmask16 simde__mmask16
/* Masked memory, with the machine's rule: what is masked is not touched. */
static inline __m512 nb_maskz_loadu_ps(__mmask16 mask, const void *from) {
    float to[16];
    for (int i = 0; i < 16; i++) to[i] = 0;
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy(&to[i], (const char *)from + 4 * i, 4);
    return simde_mm512_loadu_ps(to);
}
static inline void nb_mask_store(void *to, __mmask16 mask, const void *from, size_t size) {
    for (size_t i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy((char *)to + i * size, (const char *)from + i * size, size);
}
static inline void nb_mask_storeu_ps(void *to, __mmask16 mask, __m512 x) { nb_mask_store(to, mask, &x, 4); }
static inline void nb_mask_storeu_epi16(void *to, __mmask16 mask, __m256i x) { nb_mask_store(to, mask, &x, 2); }
static inline void nb_mask_storeu_epi8(void *to, __mmask16 mask, __m128i x) { nb_mask_store(to, mask, &x, 1); }

/* SIMDe drops what a NaN carries; the compiler's own half floats keep it, as the instruction does. */
static inline __m256i nb_cvtps_ph(__m512 x) {
    float from[16];
    _Float16 to[16];
    simde_mm512_storeu_ps(from, x);
    for (int i = 0; i < 16; i++) to[i] = (_Float16)from[i];
    return simde_mm256_loadu_si256((const simde__m256i *)to);
}
static inline __m128i nb_cvtepi32_epi8(__m512i x) {
    int32_t from[16];
    uint8_t to[16];
    simde_mm512_storeu_si512(from, x);
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)from[i];
    return simde_mm_loadu_si128((const simde__m128i *)to);
}
static inline __m512i nb_shuffle_epi32(__m512i x, int order) {
    int32_t from[16], to[16];
    simde_mm512_storeu_si512(from, x);
    for (int i = 0; i < 16; i++) to[i] = from[i / 4 * 4 + (order >> i % 4 * 2 & 3)];
    return simde_mm512_loadu_si512(to);
}
/* SIMDe has this one, but takes gcc half a minute over a kernel full of it. */
static inline __m512i nb_dpbusd_epi32(__m512i sum, __m512i u, __m512i s) {
    int32_t sums[16];
    uint8_t us[64];
    int8_t ss[64];
    memcpy(sums, &sum, sizeof sums);
    memcpy(us, &u, sizeof us);
    memcpy(ss, &s, sizeof ss);
    for (int i = 0; i < 64; i++) sums[i / 4] += us[i] * ss[i];
    return simde_mm512_loadu_si512(sums);
}
static inline __m256i nb_dpbusd_avx_epi32(__m256i sum, __m256i u, __m256i s) {
    const __m512i zero = simde_mm512_setzero_si512();
    return nb_half_si(nb_dpbusd_epi32(nb_join_si(sum, nb_half_si(zero, 0)), nb_join_si(u, nb_half_si(zero, 0)),
                                      nb_join_si(s, nb_half_si(zero, 0))),
                      0);
}
static inline __m256i nb_cvtps_epi32_256(__m256 x) {
    return nb_half_si(nb_cvtps_epi32(nb_join_ps(x, x)), 0);
}
static inline __m256 nb_extractf32x8_ps(__m512 x, int part) {
    float from[16];
    simde_mm512_storeu_ps(from, x);
    return simde_mm256_loadu_ps(from + 8 * part);
}
#ifndef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 simde_mm512_shuffle_f32x4
#endif
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 nb_dpbusd_epi32
#define _mm256_dpbusd_avx_epi32 nb_dpbusd_avx_epi32
#undef _mm256_cvtps_epi32
#define _mm256_cvtps_epi32 nb_cvtps_epi32_256
#define _mm512_maskz_loadu_ps nb_maskz_loadu_ps
#define _mm512_mask_storeu_ps nb_mask_storeu_ps
#define _mm256_mask_storeu_epi16 nb_mask_storeu_epi16
#define _mm_mask_storeu_epi8 nb_mask_storeu_epi8
#define _mm512_cvtps_ph(x, mode) nb_cvtps_ph(x)
#define _mm512_cvtepi32_epi8 nb_cvtepi32_epi8
#define _mm512_shuffle_epi32 nb_shuffle_epi32
#define _mm512_extractf32x8_ps nb_extractf32x8_ps
#define _mm512_cvtph_ps nb_cvtph_ps
#define _mm512_cvtepu8_epi32 nb_cvtepu8_epi32
#define _mm512_cvtepi8_epi32 nb_cvtepi8_epi32
#define _mm512_cvtepi32_ps nb_cvtepi32_ps
#define _mm512_cvtps_epi32 nb_cvtps_epi32

#endif
