/* SPDX-License-Identifier: Apache-2.0
 * Two words for kernels that live in registers, on any architecture: the array of accumulators is only registers once the loop
 * over it is gone, and compilers differ in when they do that by themselves. */
#ifndef NB_UNROLL_H
#define NB_UNROLL_H

#define NB_INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define NB_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NB_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
