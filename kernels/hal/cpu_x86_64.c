/* SPDX-License-Identifier: Apache-2.0
 * Which levels this x86-64 processor and its operating system allow: CPUID leaves 1 and 7, and XGETBV.
 * A level asks for all that its compile flags let the compiler use (platforms/isa.yaml), not only for what our
 * intrinsics name: AVX2 brings SSE4.2 and POPCNT along. By hand, because __builtin_cpu_supports needs compiler-rt's
 * constructor and knows no level that is younger than the compiler. */
#include "hal/hal.h"

#include <cpuid.h>

enum { XCR0_YMM = 0x06, XCR0_ZMM = 0xe6 }; /* SSE + AVX state; the same + opmask, upper halves and upper 16 ZMM */

/* The register states that the operating system saves; only where OSXSAVE is set. */
static uint32_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int all(uint32_t have, uint32_t want) { return (have & want) == want; }

uint32_t nb_cpu_isa(void) {
    unsigned a, b, d, leaf1c, leaf7b, leaf7c;
    const uint32_t sse41 = 1u << 0 | 1u << 9 | 1u << 19; /* SSE3, SSSE3, SSE4.1 */
    if (!__get_cpuid(1, &a, &b, &leaf1c, &d) || !all(leaf1c, sse41)) return 0;
    uint32_t isa = NB_ISA_SSE41;
    const uint32_t avx = 1u << 20 | 1u << 23 | 1u << 27 | 1u << 28 | 1u << 29; /* SSE4.2, POPCNT, OSXSAVE, AVX, F16C */
    if (!all(leaf1c, avx) || !__get_cpuid_count(7, 0, &a, &leaf7b, &leaf7c, &d) || !all(leaf7b, 1u << 5)) return isa; /* AVX2 */
    const uint32_t saved = xcr0(), subleaves = a;
    if (!all(saved, XCR0_YMM)) return isa;
    isa |= NB_ISA_AVX2;
    const uint32_t want7b = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* AVX-512 F, DQ, BW, VL */
    if (all(leaf7b, want7b) && all(leaf7c, 1u << 11) && all(saved, XCR0_ZMM)) isa |= NB_ISA_AVX512VNNI; /* VNNI */
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &leaf7c, &d) && all(a, 1u << 4)) isa |= NB_ISA_AVXVNNI;
    return isa;
}
