/* SPDX-License-Identifier: Apache-2.0
 * silu_mul and gelu_mul: all fills and the ends of exp's range, in place and not. */
#include "checkops.h"

static void one(struct check *c, const char *name, nb_gated_fn *have_fn, nb_gated_fn *want_fn, uint32_t n, enum fill fill) {
    float *gate = check_buffer(c, n * sizeof *gate), *up = check_buffer(c, n * sizeof *up),
          *have = check_buffer(c, n * sizeof *have);
    float *want = check_buffer(c, n * sizeof *want);
    check_fill(c, gate, n, fill);
    check_fill(c, up, n, FILL_NORMAL);
    for (uint32_t i = 0; i < n && fill == FILL_NORMAL; i++) gate[i] *= 25.0f; /* -100..100: past both clamps */
    check_begin(c, name, "n %u %s", n, check_fill_name(fill));
    have_fn(have, gate, up, n);
    want_fn(want, gate, up, n);
    check_same(c, "y", have, want, n * sizeof *have, 4);
    have_fn(gate, gate, up, n);
    check_same(c, "y in place", gate, want, n * sizeof *have, 4);
    check_free_all(c);
}

static void check(struct check *c) {
    for (unsigned i = 0; i < 4 * c->rounds; i++)
        for (int fill = 0; fill < FILLS; fill++) {
            one(c, c->have->silu_mul_name, c->have->silu_mul, c->want->silu_mul, 1 + check_below(c, 200), (enum fill)fill);
            one(c, c->have->gelu_mul_name, c->have->gelu_mul, c->want->gelu_mul, 1 + check_below(c, 200), (enum fill)fill);
        }
}

struct job {
    nb_gated_fn *fn;
    float gate[2048], up[2048], y[2048];
};

static void run(void *context) {
    struct job *j = context;
    j->fn(j->y, j->gate, j->up, 2048);
}

static void bench(const struct nb_hal *hal) {
    static struct job j;
    struct check c = {.state = 1};
    check_fill(&c, j.gate, 2048, FILL_NORMAL);
    check_fill(&c, j.up, 2048, FILL_NORMAL);
    j.fn = hal->silu_mul;
    bench_row(hal->silu_mul_name, "2048, in L1", sizeof j.gate, 0, LIMIT_NONE, run, &j);
    j.fn = hal->gelu_mul;
    bench_row(hal->gelu_mul_name, "2048, in L1", sizeof j.gate, 0, LIMIT_NONE, run, &j);
}

const struct check_op check_gated = {"gated", check, bench};
