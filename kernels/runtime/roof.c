/* SPDX-License-Identifier: Apache-2.0
 * Twelve independent sums hide the latency; the empty asm statements keep the compiler from seeing that every round does
 * the same. Target attributes, not kernels: nothing but `--bench` may depend on this. */
#include "runtime/roof.h"

#include "hal/hal.h"

enum { SUMS = 12 };

#if defined(__x86_64__)
#include <immintrin.h>

/* pmaddwd on widened values: what the baseline has */
static uint64_t roof_sse2(uint64_t rounds) {
    __m128i a = _mm_set1_epi16(3), b = _mm_set1_epi16(5), sum[SUMS] = {{0}};
    for (uint64_t i = 0; i < rounds; i++)
        for (int j = 0; j < SUMS; j++) {
            __asm__ volatile("" : "+x"(a));
            sum[j] = _mm_add_epi32(sum[j], _mm_madd_epi16(a, b));
        }
    for (int j = 0; j < SUMS; j++) __asm__ volatile("" : : "x"(sum[j]));
    return rounds * SUMS * 8;
}

__attribute__((target("avx2"))) static uint64_t roof_avx2(uint64_t rounds) {
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1), sum[SUMS] = {{0}};
    for (uint64_t i = 0; i < rounds; i++)
        for (int j = 0; j < SUMS; j++) {
            __asm__ volatile("" : "+x"(a));
            sum[j] = _mm256_add_epi32(sum[j], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    for (int j = 0; j < SUMS; j++) __asm__ volatile("" : : "x"(sum[j]));
    return rounds * SUMS * 32;
}

__attribute__((target("avx512f,avx512vnni"))) static uint64_t roof_avx512vnni(uint64_t rounds) {
    __m512i a = _mm512_set1_epi32(0x03030303), b = _mm512_set1_epi32(0x05050505), sum[SUMS] = {{0}};
    for (uint64_t i = 0; i < rounds; i++)
        for (int j = 0; j < SUMS; j++) sum[j] = _mm512_dpbusd_epi32(sum[j], a, b);
    for (int j = 0; j < SUMS; j++) __asm__ volatile("" : : "v"(sum[j]));
    return rounds * SUMS * 64;
}

uint64_t nb_roof(uint32_t isa, uint64_t rounds) {
    if (isa & NB_ISA_AVX512VNNI) return roof_avx512vnni(rounds);
    return isa & NB_ISA_AVX2 ? roof_avx2(rounds) : roof_sse2(rounds);
}
#else
uint64_t nb_roof(uint32_t isa, uint64_t rounds) {
    int32_t a = 3, b = 5, sum[SUMS] = {0};
    (void)isa;
    for (uint64_t i = 0; i < rounds; i++)
        for (int j = 0; j < SUMS; j++) {
            __asm__ volatile("" : "+r"(a));
            sum[j] += a * b;
        }
    for (int j = 0; j < SUMS; j++) __asm__ volatile("" : : "r"(sum[j]));
    return rounds * SUMS;
}
#endif
