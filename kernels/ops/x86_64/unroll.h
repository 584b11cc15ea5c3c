/* SPDX-License-Identifier: Apache-2.0
 * ops/unroll.h, and a word that x86 kernels need beside it. */
#ifndef NB_OPS_UNROLL_H
#define NB_OPS_UNROLL_H

#include "ops/unroll.h"

/* Ties a sum to its order: gcc 12 regroups integer additions and then spills the products it holds back. */
#define NB_KEEP(x) __asm__("" : "+x"(x))

#endif
