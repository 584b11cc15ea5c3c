/* SPDX-License-Identifier: Apache-2.0
 * Timing for --bench: rates of a kernel beside the limits of this core. A shared host gives a core half of what its manual
 * says, so limits are measured in the same minute, by the loops that the program itself uses for that (runtime/roof.c). */
#include "checkops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/bench.h"
#include "runtime/roof.h"

static double limits[LIMITS]; /* a second: bytes, operations */

/* Time of this thread alone: what others do meanwhile on this core does not count. */
double nb_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_row(const char *kernel, const char *what, double bytes, double operations, enum limit limit, void (*fn)(void *),
                 void *context) {
    double rate[64];
    size_t n = 0;
    fn(context);
    const double start = nb_now();
    do {
        const double t0 = nb_now();
        unsigned times = 0;
        double t;
        do {
            fn(context);
            times++;
            t = nb_now() - t0;
        } while (t < 0.01);
        rate[n++] = times / t;
    } while (n < 5 || (n < 64 && nb_now() - start < 0.35));
    qsort(rate, n, sizeof *rate, by_value);
    const double low = rate[0] * 1e-9, mid = rate[n / 2] * 1e-9, high = rate[n - 1] * 1e-9;
    printf("%-50s %-36s", kernel, what);
    if (bytes > 0) printf("  %6.2f / %6.2f / %6.2f GB/s", bytes * low, bytes * mid, bytes * high);
    if (operations > 0) printf("  %6.1f / %6.1f / %6.1f Gop/s", operations * low, operations * mid, operations * high);
    if (limit == LIMIT_READ) printf("  %3.0f %% of reading", 100 * bytes * rate[n / 2] / limits[limit]);
    if (limit == LIMIT_STEPS) printf("  %3.0f %% of int8 steps", 100 * operations * rate[n / 2] / limits[limit]);
    printf("\n");
    return rate[n / 2];
}

static const size_t SIZE = (size_t)1 << 27;

struct probe {
    uint32_t isa;
    struct nb_way way;
    const uint8_t *big;
    uint64_t seen, products;
};

static void read_all(void *context) {
    struct probe *p = context;
    p->seen ^= nb_read(p->isa, p->big, SIZE, p->way);
}

static void step(void *context) {
    struct probe *p = context;
    p->products = nb_roof(p->isa, 10000);
}

void bench_limits(const struct nb_hal *hal) {
    const double bytes = (double)SIZE;
    uint8_t *big = aligned_alloc(4096, SIZE);
    if (!big) exit(4);
    memset(big, 1, SIZE);
    struct probe p = {.isa = hal->isa, .big = big};
    for (size_t i = 0; i < NB_WAYS; i++) {
        char what[64];
        p.way = nb_ways[i];
        snprintf(what, sizeof what, "read 128 MiB, ask %u B ahead%s", p.way.ahead, p.way.once ? ", once" : "");
        const double rate = bytes * bench_row("limit", what, bytes, 0, LIMIT_NONE, read_all, &p);
        if (rate > limits[LIMIT_READ]) limits[LIMIT_READ] = rate;
    }
    free(big);
    step(&p);
    const double operations = 2 * (double)p.products;
    char what[64];
    snprintf(what, sizeof what, "int8 steps in registers, %s", nb_isa_name(hal->isa));
    limits[LIMIT_STEPS] = operations * bench_row("limit", what, 0, operations, LIMIT_NONE, step, &p);
}
