/* SPDX-License-Identifier: Apache-2.0
 * How much memory there is, and taking it so that using it later cannot fail. */
#ifndef NB_MEMORY_H
#define NB_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that can be had without swapping: what the system has available, but not more than the cgroup leaves. */
uint64_t nb_memory_available(void);
/* Zeroed memory, in huge pages where the system has them; not yet there. NULL: the address space is full. */
void *nb_memory_take(size_t size);
/* Makes the pages of one of `parts` parts present, so that using them later can neither fail nor take time. */
void nb_memory_touch(void *base, size_t size, unsigned part, unsigned parts);

#endif
