/* SPDX-License-Identifier: Apache-2.0
 * Which levels this 64-bit Arm processor and its kernel allow: the hardware capabilities of the auxiliary vector, which the
 * kernel gives only for what all cores of a mixed chip have. */
#include "hal/hal.h"

#include <sys/auxv.h>

enum { ASIMD = 1 << 1, ASIMDDP = 1 << 20, I8MM = 1 << 13 }; /* AT_HWCAP, AT_HWCAP, AT_HWCAP2 */

uint32_t nb_cpu_isa(void) {
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    if (!(first & ASIMD)) return 0;
    if (!(first & ASIMDDP)) return NB_ISA_NEON;
    return NB_ISA_NEON | NB_ISA_DOTPROD | (second & I8MM ? NB_ISA_I8MM : 0u);
}
