/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic roof: int8 multiply-adds from registers, for the timing loops only. */
#ifndef NB_ROOF_H
#define NB_ROOF_H

#include <stdint.h>

/* Does about `rounds` rounds of the level's best instructions for int8 products summed into int32; returns how many
 * multiply-adds that were. */
uint64_t nb_roof(uint32_t isa, uint64_t rounds);

#endif
