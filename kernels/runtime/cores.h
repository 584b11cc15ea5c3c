/* SPDX-License-Identifier: Apache-2.0
 * Which processors are ours, and how much each does beside the fastest: read once, before "ready". */
#ifndef NB_CORES_H
#define NB_CORES_H

#include <stdint.h>

enum { NB_CORES_MAX = 256, NB_CAPACITY = 1024, NB_CPU_NUMBERS = 1024 };

struct nb_core {
    uint32_t cpu;      /* its number */
    uint32_t capacity; /* NB_CAPACITY: as fast as the fastest */
};

/* In the order in which threads get them: first one of each physical core, the fastest first; then the cores' second
 * hardware threads, and so on. */
struct nb_cores {
    uint32_t count; /* at least 1 */
    uint32_t fast;  /* so many at the front are worth a thread each by default */
    uint32_t even;  /* all have the same capacity */
    struct nb_core core[NB_CORES_MAX];
};

/* The numbers of the processors in this thread's affinity mask; returns how many, 0 if that cannot be read. */
uint32_t nb_cores_allowed(uint32_t cpus[NB_CORES_MAX]);

/* What the files below root ("" is this machine) say about those processors, given in increasing order. A file that cannot
 * be read means "all alike". */
void nb_cores_read(struct nb_cores *cores, const char *root, const uint32_t *cpus, uint32_t count);

/* Threads to start by default: cores->fast, but not more than the whole processors of the cgroup's quota. At least 1. */
uint32_t nb_cores_threads(const struct nb_cores *cores);

#endif
