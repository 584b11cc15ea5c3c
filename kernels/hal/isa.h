/* SPDX-License-Identifier: Apache-2.0
 * Instruction set levels: a bit each, what the running CPU has, what the program was built to need. */
#ifndef NB_ISA_H
#define NB_ISA_H

#include <stdint.h>

/* Bits of the running CPU, each a level above the one before it on its architecture. 0 (no bits) is the scalar level. */
enum nb_isa {
    NB_ISA_SSE41 = 1u << 0,      /* SSE4.1 and SSSE3 */
    NB_ISA_AVX2 = 1u << 1,       /* AVX2 + F16C, operating system saves YMM */
    NB_ISA_AVXVNNI = 1u << 2,    /* AVX-VNNI: vpdpbusd of 256 bits in VEX encoding */
    NB_ISA_AVX512VNNI = 1u << 3, /* AVX-512 F/BW/DQ/VL/VNNI, operating system saves ZMM */
    NB_ISA_NEON = 1u << 8,       /* Advanced SIMD, what every 64-bit Arm Linux machine has */
    NB_ISA_DOTPROD = 1u << 9,    /* SDOT, UDOT */
    NB_ISA_I8MM = 1u << 10,      /* SMMLA */
    NB_ISA_RVV = 1u << 16,       /* vector extension 1.0, VLEN of 128 or more */
};

/* What the program was built to need: kernels below its floor may be missing. NB_FLOOR (bits) is a define of lean builds. */
#ifndef NB_FLOOR
#define NB_FLOOR 0u
#endif

/* What this CPU and its operating system allow */
uint32_t nb_cpu_isa(void);
/* NB_FLOOR, as the kernel table was compiled */
uint32_t nb_isa_floor(void);
/* Highest level of a mask: "scalar", "avx2", "dotprod" ... */
const char *nb_isa_name(uint32_t isa);
/* "scalar,avx2" -> mask. Returns 0 and leaves *isa alone on an unknown name, a level that is not built in, or levels that are
 * all below the floor; what the floor holds is always in the mask. */
int nb_isa_parse(const char *text, uint32_t *isa);

#endif
