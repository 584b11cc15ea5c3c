/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C (Castagnoli, reflected), eight bytes a step by tables. */
#ifndef NB_CRC32C_H
#define NB_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over n bytes: nb_crc32c(nb_crc32c(0, a), b) is the value of a followed by b. */
uint32_t nb_crc32c(uint32_t crc, const void *data, size_t n);

#endif
