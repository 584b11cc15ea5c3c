/* SPDX-License-Identifier: Apache-2.0
 * What the machine can do at most, for the timing loops only: int8 products from registers, and reading memory. */
#ifndef NB_ROOF_H
#define NB_ROOF_H

#include <stddef.h>
#include <stdint.h>

/* Does about `rounds` rounds of the level's best instructions for int8 products summed into integers; returns how many
 * multiply-adds that were. */
uint64_t nb_roof(uint32_t isa, uint64_t rounds);

/* A way to read: how many bytes ahead a line is asked for (0: only the processor's own prefetcher), and whether it is
 * asked for as data that is used once. */
struct nb_way {
    uint32_t ahead, once;
};
enum { NB_WAYS = 6 };
extern const struct nb_way nb_ways[NB_WAYS];

/* Reads whole kilobytes from one end to the other with the level's widest loads; data is at a multiple of 64. Returns
 * the exclusive or of all 64-bit words. */
uint64_t nb_read(uint32_t isa, const void *data, size_t size, struct nb_way way);

/* Clock of this core in GHz: dependent additions, one a cycle; the best of a few milliseconds. */
double nb_clock(void);

#endif
