/* SPDX-License-Identifier: Apache-2.0
 * rmsnorm: lengths around multiples of 16, in place and not. */
#include "checkops.h"

static void one(struct check *c, uint32_t n, enum fill fill) {
    float *x = check_buffer(c, n * sizeof *x), *w = check_buffer(c, n * sizeof *w), *have = check_buffer(c, n * sizeof *have);
    float *want = check_buffer(c, n * sizeof *want);
    check_fill(c, x, n, fill);
    check_fill(c, w, n, FILL_NORMAL);
    check_begin(c, c->have->rmsnorm_name, "n %u %s", n, check_fill_name(fill));
    c->have->rmsnorm(have, x, w, n, 1e-5f);
    c->want->rmsnorm(want, x, w, n, 1e-5f);
    check_same(c, "y", have, want, n * sizeof *have, 4);
    c->have->rmsnorm(x, x, w, n, 1e-5f);
    check_same(c, "y in place", x, want, n * sizeof *have, 4);
    check_free_all(c);
}

static void check(struct check *c) {
    for (unsigned i = 0; i < 8 * c->rounds; i++)
        for (int fill = 0; fill < FILLS; fill++) one(c, 1 + check_below(c, 200), (enum fill)fill);
    for (uint32_t n = 1; n <= 40; n++) one(c, n, FILL_NORMAL);
}

struct job {
    nb_rmsnorm_fn *fn;
    float x[4096], w[4096], y[4096];
};

static void run(void *context) {
    struct job *j = context;
    j->fn(j->y, j->x, j->w, 4096, 1e-5f);
}

static void bench(const struct nb_hal *hal) {
    static struct job j;
    struct check c = {.state = 1};
    j.fn = hal->rmsnorm;
    check_fill(&c, j.x, 4096, FILL_NORMAL);
    check_fill(&c, j.w, 4096, FILL_NORMAL);
    bench_row(hal->rmsnorm_name, "4096, in L1", sizeof j.x, 0, LIMIT_NONE, run, &j);
}

const struct check_op check_rmsnorm = {"rmsnorm", check, bench};
