/* SPDX-License-Identifier: Apache-2.0
 * Linux says how fast a core is in several places. cpu_capacity is made for this, but not every kernel for x86 fills it
 * with different numbers where the cores differ: there the list of efficiency cores and the highest clocks stand in.
 *
 * One thread a physical core: the second hardware thread of a core shares the units that int8 products and prefetched
 * lines go through. Cores below 6/10 of the fastest are left out by default: generation waits for memory, which the fast
 * ones use up alone, and each stage would end with a slow one's last piece; asked for, they get their share. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "runtime/cores.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "runtime/cgroup.h"

enum { TEXT = 1024, FAST_TENTHS = 6 };

uint32_t nb_cores_allowed(uint32_t cpus[NB_CORES_MAX]) {
    cpu_set_t set;
    uint32_t count = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return 0;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE && count < NB_CORES_MAX; cpu++)
        if (CPU_ISSET(cpu, &set)) cpus[count++] = cpu;
    return count;
}

/* A whole number above 0 in a file of a processor, or 0. */
static uint32_t number(const char *root, uint32_t cpu, const char *name) {
    char folder[TEXT], line[32];
    unsigned value;
    snprintf(folder, sizeof folder, "%s/sys/devices/system/cpu/cpu%u", root, cpu);
    return nb_read_line(folder, name, line, sizeof line) && sscanf(line, "%u", &value) == 1 ? value : 0;
}

/* Marks the processors of a list like "0-3,8" in set (NB_CPU_NUMBERS). */
static void mark(const char *list, uint8_t *set) {
    unsigned from, to;
    memset(set, 0, NB_CPU_NUMBERS);
    for (; list && sscanf(list, "%u", &from) == 1; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL) {
        if (sscanf(list, "%u-%u", &from, &to) != 2) to = from;
        for (unsigned i = from; i <= to && i < NB_CPU_NUMBERS; i++) set[i] = 1;
    }
}

/* Fills capacity with numbers of any unit. Returns 0 if some are unknown. */
static int capacities(struct nb_core *core, uint32_t count, const char *root, const char *name) {
    for (uint32_t i = 0; i < count; i++)
        if (!(core[i].capacity = number(root, core[i].cpu, name))) return 0;
    return 1;
}

/* Makes the largest NB_CAPACITY, and equal to it what is less than an eighth slower: favoured cores of one kind differ by
 * that much, and so do the clocks of clusters of one kind. Returns whether all are equal then. */
static int scale(struct nb_core *core, uint32_t count) {
    uint64_t largest = 1;
    uint32_t even = 1;
    for (uint32_t i = 0; i < count; i++)
        if (core[i].capacity > largest) largest = core[i].capacity;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t scaled = core[i].capacity * (uint64_t)NB_CAPACITY / largest;
        core[i].capacity = scaled > NB_CAPACITY - NB_CAPACITY / 8 ? NB_CAPACITY : scaled ? (uint32_t)scaled : 1;
        even &= core[i].capacity == NB_CAPACITY;
    }
    return (int)even;
}

static int measure(struct nb_core *core, uint32_t count, const char *root) {
    char folder[TEXT], list[TEXT];
    uint8_t efficient[NB_CPU_NUMBERS];
    if (capacities(core, count, root, "cpu_capacity") && !scale(core, count)) return 0;
    if (!capacities(core, count, root, "cpufreq/cpuinfo_max_freq"))
        for (uint32_t i = 0; i < count; i++) core[i].capacity = NB_CAPACITY;
    snprintf(folder, sizeof folder, "%s/sys/devices/cpu_atom", root);
    if (nb_read_line(folder, "cpus", list, sizeof list)) {
        mark(list, efficient); /* Intel's: vector units of half the width */
        for (uint32_t i = 0; i < count; i++) core[i].capacity >>= core[i].cpu < NB_CPU_NUMBERS && efficient[core[i].cpu];
    }
    return scale(core, count);
}

/* How many of the processors before core[i] are hardware threads of the same physical core. */
static uint32_t rank(const struct nb_core *core, uint32_t i, const char *root) {
    char folder[TEXT], list[TEXT];
    uint8_t siblings[NB_CPU_NUMBERS];
    uint32_t before = 0;
    snprintf(folder, sizeof folder, "%s/sys/devices/system/cpu/cpu%u/topology", root, core[i].cpu);
    if (!nb_read_line(folder, "thread_siblings_list", list, sizeof list)) return 0;
    mark(list, siblings);
    for (uint32_t j = 0; j < i; j++) before += core[j].cpu < NB_CPU_NUMBERS && siblings[core[j].cpu];
    return before;
}

void nb_cores_read(struct nb_cores *cores, const char *root, const uint32_t *cpus, uint32_t count) {
    struct nb_core core[NB_CORES_MAX];
    uint32_t ranks[NB_CORES_MAX];
    *cores = (struct nb_cores){.count = 1, .fast = 1, .even = 1, .core = {{0, NB_CAPACITY}}};
    if (count == 0) return;
    if (count > NB_CORES_MAX) count = NB_CORES_MAX;
    for (uint32_t i = 0; i < count; i++) core[i].cpu = cpus[i];
    cores->count = count;
    cores->even = (uint32_t)measure(core, count, root);
    for (uint32_t i = 0; i < count; i++) { /* sorts by rank, capacity, number */
        const uint32_t own = rank(core, i, root);
        uint32_t at = i;
        for (; at > 0 && (ranks[at - 1] > own || (ranks[at - 1] == own && cores->core[at - 1].capacity < core[i].capacity));
             at--) {
            ranks[at] = ranks[at - 1];
            cores->core[at] = cores->core[at - 1];
        }
        ranks[at] = own;
        cores->core[at] = core[i];
    }
    for (cores->fast = 0; cores->fast < count && ranks[cores->fast] == 0; cores->fast++)
        if (cores->core[cores->fast].capacity * 10 < NB_CAPACITY * FAST_TENTHS) break;
    if (cores->fast == 0) cores->fast = 1;
}

/* Lowers *context (uint32_t) to the whole processors that the quota at one cgroup folder allows. */
static void quota_at(const char *folder, int version, void *context) {
    uint32_t *limit = context;
    char line[128];
    long long quota = -1, period = 100000;
    if (version == 2) {
        if (!nb_read_line(folder, "cpu.max", line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2) return;
    } else {
        if (!nb_read_line(folder, "cpu.cfs_quota_us", line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return;
        if (!nb_read_line(folder, "cpu.cfs_period_us", line, sizeof line) || sscanf(line, "%lld", &period) != 1) return;
    }
    if (quota <= 0 || period <= 0 || quota / period >= *limit) return;
    *limit = quota / period < 1 ? 1 : (uint32_t)(quota / period);
}

uint32_t nb_cores_threads(const struct nb_cores *cores) {
    uint32_t threads = cores->fast;
    nb_cgroup_walk("cpu", quota_at, &threads);
    return threads;
}
