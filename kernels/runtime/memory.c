/* SPDX-License-Identifier: Apache-2.0
 * Memory limits are read where Linux keeps them (meminfo, the cgroup's files); what cannot be read is no limit. */
#include "runtime/memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/cgroup.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels refuse it and the pages are touched one by one */
#endif

enum { PIECE = 2 << 20 }; /* a huge page: no two threads touch the same one */

static uint64_t meminfo_available(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return UINT64_MAX;
    char line[128];
    unsigned long long kib;
    uint64_t found = UINT64_MAX;
    while (found == UINT64_MAX && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) found = (uint64_t)kib << 10;
    fclose(f);
    return found;
}

static uint64_t read_number(const char *folder, const char *name) {
    char line[64];
    unsigned long long value; /* "max" is no number: no limit */
    return nb_read_line(folder, name, line, sizeof line) && sscanf(line, "%llu", &value) == 1 ? value : UINT64_MAX;
}

/* File pages count as used but are given back under pressure. */
static uint64_t file_pages(const char *folder) {
    char path[1200], line[128];
    unsigned long long value, sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %llu", &value) == 1 || sscanf(line, "active_file %llu", &value) == 1) sum += value;
    fclose(f);
    return sum;
}

/* Lowers *context (uint64_t) to what one cgroup folder leaves. */
static void left_at(const char *folder, int version, void *context) {
    uint64_t *least = context;
    uint64_t limit = read_number(folder, version == 2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used = read_number(folder, version == 2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == UINT64_MAX || used == UINT64_MAX || limit >= *least) return;
    uint64_t cache = file_pages(folder);
    used = used > cache ? used - cache : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < *least) *least = left;
}

uint64_t nb_memory_available(void) {
    uint64_t least = meminfo_available();
    nb_cgroup_walk("memory", left_at, &least);
    return least;
}

void *nb_memory_take(size_t size) {
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(base, size, MADV_HUGEPAGE);
#endif
    return base;
}

void nb_memory_touch(void *base, size_t size, unsigned part, unsigned parts) {
    const size_t from = (size_t)((uint64_t)(size / PIECE) * part / parts) * PIECE;
    const size_t to = part + 1 == parts ? size : (size_t)((uint64_t)(size / PIECE) * (part + 1) / parts) * PIECE;
    char *at = (char *)base + from;
    if (from < to && madvise(at, to - from, MADV_POPULATE_WRITE)) memset(at, 0, to - from);
}
