/* SPDX-License-Identifier: Apache-2.0
 * Independent sums hide the latency; the empty asm statements keep the compiler from seeing that every round does the
 * same. A function named ..__<level> has that level's instructions by its target attribute and is called only where
 * the level is in use. Nothing but the timing loops may depend on this file. */
#include "runtime/roof.h"

#include "hal/hal.h"
#include "runtime/bench.h"

enum { SUMS = 12, SPAN = 1024, CLOCK_ROUNDS = 200000, CLOCK_TRIES = 10 };

#define UNROLL _Pragma("GCC unroll 16")
#define OPAQUE(constraint, x) __asm__ volatile("" : "+" constraint(x))
#define AT_LEVEL(features) __attribute__((target(features), noinline))

const struct nb_way nb_ways[NB_WAYS] = {{0, 0}, {1024, 0}, {2048, 0}, {4096, 0}, {8192, 0}, {4096, 1}};

typedef uint64_t vec16 __attribute__((vector_size(16), may_alias));
typedef uint64_t vec32 __attribute__((vector_size(32), may_alias));
typedef uint64_t vec64 __attribute__((vector_size(64), may_alias));

/* 8 loads side by side; one prefetch a line, of lines that come `ahead` bytes later (past the end it does nothing). */
#define READ_SPAN(vec, prefetch)                                                                                                 \
    for (; p < end; p += 8 * sizeof(vec)) {                                                                                      \
        UNROLL for (size_t i = 0; i < 8 * sizeof(vec); i += 64) prefetch;                                                        \
        UNROLL for (int j = 0; j < 8; j++) sum[j] ^= ((const vec *)(const void *)p)[j];                                          \
    }
#define READ(name, attributes, vec)                                                                                              \
    attributes static uint64_t name(const uint8_t *p, size_t size, struct nb_way way) {                                          \
        const uint8_t *end = p + size / SPAN * SPAN;                                                                             \
        const size_t ahead = way.ahead;                                                                                          \
        vec sum[8] = {{0}};                                                                                                      \
        if (way.once) READ_SPAN(vec, __builtin_prefetch(p + ahead + i, 0, 0))                                                    \
        else if (ahead) READ_SPAN(vec, __builtin_prefetch(p + ahead + i, 0, 3))                                                  \
        else READ_SPAN(vec, (void)i)                                                                                             \
        for (int j = 1; j < 8; j++) sum[0] ^= sum[j];                                                                            \
        uint64_t all = 0;                                                                                                        \
        for (size_t i = 0; i < sizeof(vec) / sizeof all; i++) all ^= sum[0][i];                                                  \
        return all;                                                                                                              \
    }

/* ROOF(name, attributes, vector type, registers' constraint, multiply-adds a round and sum, step): `step` adds the
 * products of a and b to sum[j]. */
#define ROOF(name, attributes, vec, constraint, macs, start_a, start_b, step)                                                    \
    attributes static uint64_t name(uint64_t rounds) {                                                                           \
        vec a = start_a, b = start_b, sum[SUMS];                                                                                 \
        __builtin_memset(sum, 0, sizeof sum);                                                                                    \
        OPAQUE(constraint, b);                                                                                                   \
        for (uint64_t r = 0; r < rounds; r++) {                                                                                  \
            UNROLL for (int j = 0; j < SUMS; j++) {                                                                              \
                OPAQUE(constraint, a);                                                                                           \
                step;                                                                                                            \
            }                                                                                                                    \
        }                                                                                                                        \
        UNROLL for (int j = 0; j < SUMS; j++) OPAQUE(constraint, sum[j]);                                                        \
        return rounds * SUMS * (macs);                                                                                           \
    }

#if defined(__x86_64__)
#include <immintrin.h>

/* pmaddwd on widened values: what the baseline has */
ROOF(roof__scalar, __attribute__((noinline)), __m128i, "x", 8, _mm_set1_epi16(3), _mm_set1_epi16(5),
     sum[j] = _mm_add_epi32(sum[j], _mm_madd_epi16(a, b)))
ROOF(roof__sse41, AT_LEVEL("ssse3,sse4.1"), __m128i, "x", 16, _mm_set1_epi8(3), _mm_set1_epi8(5),
     sum[j] = _mm_add_epi32(sum[j], _mm_madd_epi16(_mm_maddubs_epi16(a, b), _mm_set1_epi16(1))))
ROOF(roof__avx2, AT_LEVEL("avx2"), __m256i, "x", 32, _mm256_set1_epi8(3), _mm256_set1_epi8(5),
     sum[j] = _mm256_add_epi32(sum[j], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))))
ROOF(roof__avxvnni, AT_LEVEL("avx2,avxvnni"), __m256i, "x", 32, _mm256_set1_epi8(3), _mm256_set1_epi8(5),
     sum[j] = _mm256_dpbusd_avx_epi32(sum[j], a, b))
ROOF(roof__avx512vnni, AT_LEVEL("avx512f,avx512vnni"), __m512i, "v", 64, _mm512_set1_epi32(0x03030303),
     _mm512_set1_epi32(0x05050505), sum[j] = _mm512_dpbusd_epi32(sum[j], a, b))

READ(read__scalar, __attribute__((noinline)), vec16)
READ(read__avx2, AT_LEVEL("avx2"), vec32)
READ(read__avx512vnni, AT_LEVEL("avx512f"), vec64)

uint64_t nb_roof(uint32_t isa, uint64_t rounds) {
    if (isa & NB_ISA_AVX512VNNI) return roof__avx512vnni(rounds);
    if (isa & NB_ISA_AVXVNNI) return roof__avxvnni(rounds);
    if (isa & NB_ISA_AVX2) return roof__avx2(rounds);
    return isa & NB_ISA_SSE41 ? roof__sse41(rounds) : roof__scalar(rounds);
}

uint64_t nb_read(uint32_t isa, const void *data, size_t size, struct nb_way way) {
    if (isa & NB_ISA_AVX512VNNI) return read__avx512vnni(data, size, way);
    return isa & NB_ISA_AVX2 ? read__avx2(data, size, way) : read__scalar(data, size, way);
}

#elif defined(__aarch64__)
#include <arm_neon.h>

/* Four products of 7 by 8 bits fit into int16: four multiplies share one widening sum. */
static inline int32x4_t neon_step(int32x4_t sum, int8x16_t a, int8x16_t b) {
    int16x8_t products = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    products = vmlal_high_s8(products, a, b);
    products = vmlal_s8(products, vget_low_s8(a), vget_low_s8(a)); /* not the same product again: that would be doubled */
    products = vmlal_high_s8(products, a, a);
    return vpadalq_s16(sum, products);
}

#define AS_SUM(x) vreinterpretq_s8_s32(x)
#define FROM_SUM(x) vreinterpretq_s32_s8(x)
ROOF(roof__scalar, __attribute__((noinline)), int8x16_t, "w", 32, vdupq_n_s8(3), vdupq_n_s8(5),
     sum[j] = AS_SUM(neon_step(FROM_SUM(sum[j]), a, b)))
/* The instruction as text: older compilers hide the intrinsics of levels that the file is not compiled for. */
ROOF(roof__dotprod, AT_LEVEL("arch=armv8.2-a+dotprod"), int8x16_t, "w", 16, vdupq_n_s8(3), vdupq_n_s8(5),
     __asm__ volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum[j]) : "w"(a), "w"(b)))
ROOF(roof__i8mm, AT_LEVEL("arch=armv8.2-a+i8mm"), int8x16_t, "w", 32, vdupq_n_s8(3), vdupq_n_s8(5),
     __asm__ volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum[j]) : "w"(a), "w"(b)))

READ(read__scalar, __attribute__((noinline)), vec16)

uint64_t nb_roof(uint32_t isa, uint64_t rounds) {
    if (isa & NB_ISA_I8MM) return roof__i8mm(rounds);
    return isa & NB_ISA_DOTPROD ? roof__dotprod(rounds) : roof__scalar(rounds);
}

uint64_t nb_read(uint32_t isa, const void *data, size_t size, struct nb_way way) {
    (void)isa; /* the base has the widest loads */
    return read__scalar(data, size, way);
}

#else

ROOF(roof__scalar, __attribute__((noinline)), int32_t, "r", 1, 3, 5, sum[j] += a * b)
READ(read__scalar, __attribute__((noinline)), vec16)

#if defined(__riscv)
/* Six sums of two registers' worth of products; every assembler statement sets its own vector length. */
__attribute__((noinline)) static uint64_t roof__rvv(uint64_t rounds) {
    uint64_t lanes;
    __asm__ volatile(".option push\n\t.option arch, +v\n\t"
                     "vsetvli %0, zero, e8, m2, ta, ma\n\t"
                     "vmv.v.i v0, 3\n\tvmv.v.i v2, 5\n\t"
                     "1:\n\t"
                     "vwmacc.vv v8, v0, v2\n\tvwmacc.vv v12, v0, v2\n\tvwmacc.vv v16, v0, v2\n\t"
                     "vwmacc.vv v20, v0, v2\n\tvwmacc.vv v24, v0, v2\n\tvwmacc.vv v28, v0, v2\n\t"
                     "addi %1, %1, -1\n\tbnez %1, 1b\n\t"
                     ".option pop"
                     : "=&r"(lanes), "+r"(rounds)
                     :
                     : "memory");
    return lanes;
}

/* Eight registers at a time; whole registers, so any length of theirs up to SPAN bytes divides the work. */
__attribute__((noinline)) static uint64_t read__rvv(const uint8_t *p, size_t size, struct nb_way way) {
    size_t left = size / SPAN * SPAN, n;
    uint64_t sum;
    __asm__ volatile(".option push\n\t.option arch, +v\n\t"
                     "vsetvli %2, zero, e8, m8, ta, ma\n\tvmv.v.i v8, 0\n\t"
                     "1:\n\tvsetvli %2, %1, e8, m8, tu, ma\n\t"
                     "vle8.v v16, (%0)\n\tvxor.vv v8, v8, v16\n\t"
                     "add %0, %0, %2\n\tsub %1, %1, %2\n\tbnez %1, 1b\n\t"
                     "vsetvli %2, zero, e64, m8, ta, ma\n\tvmv.s.x v16, zero\n\t"
                     "vredxor.vs v16, v8, v16\n\tvmv.x.s %3, v16\n\t"
                     ".option pop"
                     : "+r"(p), "+r"(left), "=&r"(n), "=r"(sum)
                     :
                     : "memory");
    (void)way; /* the base has no prefetch instruction */
    return sum;
}
#endif

uint64_t nb_roof(uint32_t isa, uint64_t rounds) {
#if defined(__riscv)
    if (isa & NB_ISA_RVV) return rounds * 6 * roof__rvv(rounds);
#endif
    (void)isa;
    return roof__scalar(rounds);
}

uint64_t nb_read(uint32_t isa, const void *data, size_t size, struct nb_way way) {
#if defined(__riscv)
    if (size >= SPAN && isa & NB_ISA_RVV) return read__rvv(data, size, way);
#endif
    (void)isa;
    return read__scalar(data, size, way);
}
#endif

double nb_clock(void) {
    uint64_t x = 1, y = 3;
    double least = 0;
    for (int attempt = 0; attempt < CLOCK_TRIES; attempt++) {
        double start = nb_now();
        for (uint32_t r = 0; r < CLOCK_ROUNDS; r++) {
            UNROLL for (int j = 0; j < 16; j++) {
                x += y;
                OPAQUE("r", x);
            }
        }
        double seconds = nb_now() - start;
        if (attempt == 0 || seconds < least) least = seconds;
    }
    return 16e-9 * (double)CLOCK_ROUNDS / least;
}
