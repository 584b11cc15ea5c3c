/* SPDX-License-Identifier: Apache-2.0
 * Which levels this 64-bit RISC-V processor and its kernel allow. */
#include "hal/hal.h"

uint32_t nb_cpu_isa(void) { return 0; }
