/* SPDX-License-Identifier: Apache-2.0
 * Two words for kernels that live in registers: the array of accumulators is only registers once the loop over it is
 * gone, and compilers differ in when they do that by themselves. */
#ifndef NB_OPS_UNROLL_H
#define NB_OPS_UNROLL_H

#define NB_INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define NB_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NB_UNROLL _Pragma("GCC unroll 16")
#endif

/* Ties a sum to its order: gcc 12 regroups integer additions and then spills the products it holds back. */
#define NB_KEEP(x) __asm__("" : "+x"(x))

#endif
