/* SPDX-License-Identifier: Apache-2.0
 * The harness shared by check_<op>.c: seeded numbers, buffers between guard pages, bit-for-bit comparison, timing. */
#ifndef NB_CHECKOPS_H
#define NB_CHECKOPS_H

#include <stddef.h>
#include <stdint.h>

#include "hal/hal.h"

/* One check run: `want` is the scalar table, `have` the table under test. */
struct check {
    const struct nb_hal *want, *have;
    uint64_t state;  /* random numbers */
    unsigned rounds; /* how many cases of each shape */
    unsigned cases, failures;
    const char *kernel; /* the one under test, blamed by the signal handler */
    char about[200];    /* the case, in words, for the failure line */
};

/* What to put into a buffer of floats. */
enum fill { FILL_NORMAL, FILL_ZERO, FILL_EXTREME, FILL_RANGE, FILL_TINY, FILL_ONE_BIG, FILLS };

uint64_t check_random(struct check *c);
uint32_t check_below(struct check *c, uint32_t n); /* 0..n-1 */
uint32_t check_pick(struct check *c, const uint32_t *from, size_t n);
float check_float(struct check *c, float low, float high);

/* Memory that faults one byte before its start or after its end (chosen at random), until check_free_all. The slack on
 * the other side is filled and looked at in check_free_all. `size` may be 0. */
void *check_buffer(struct check *c, size_t size);
void *check_copy(struct check *c, const void *from, size_t size);
void check_free_all(struct check *c);
void check_fill(struct check *c, float *x, size_t n, enum fill fill);
const char *check_fill_name(enum fill fill);

/* Names the kernel and the case about to run; returns 0 if this kernel need not run (it is the reference itself). */
void check_begin(struct check *c, const char *kernel, const char *format, ...) __attribute__((format(printf, 3, 4)));
void check_same(struct check *c, const char *what, const void *have, const void *want, size_t size, size_t element);

/* What a kernel could reach at most: reading memory, or int8 products from registers at its level. */
enum limit { LIMIT_NONE, LIMIT_READ, LIMIT_STEPS, LIMITS };

/* Measures the limits of this machine and of the level in use, and prints them. */
void bench_limits(const struct nb_hal *hal);
/* Times fn(context) for about a third of a second in at least five runs; units per second: minimum, median, maximum, and what
 * the median is of a limit measured before. Returns the median of calls per second. */
double bench_row(const char *kernel, const char *what, double bytes, double operations, enum limit limit, void (*fn)(void *),
                 void *context);

struct check_op {
    const char *name;
    void (*check)(struct check *c);
    void (*bench)(const struct nb_hal *hal); /* may be NULL */
};
extern const struct check_op check_matmul, check_quantize, check_rmsnorm, check_rope, check_gated, check_add, check_embed,
    check_kv_store, check_attend, check_attend_join;

/* A random packed matrix and random activations, also for check_embed. */
struct nb_mat check_matrix(struct check *c, enum nb_format format, uint32_t rows, uint32_t cols, uint32_t group_shift);

#endif
