/* SPDX-License-Identifier: Apache-2.0
 * quantize: every fill, lengths that end inside a block, block ranges, tokens anywhere in a tile. */
#include "checkops.h"

#include <stdlib.h>
#include <string.h>

static void one(struct check *c, uint32_t n, uint32_t tile, enum fill fill) {
    const uint32_t blocks = (n + 31) / 32, tokens = 1 + check_below(c, 20), token = check_below(c, tokens);
    const size_t entries = (size_t)((tokens + tile - 1) / tile) * tile * blocks;
    struct nb_act a[2];
    for (int i = 0; i < 2; i++) {
        a[i] = (struct nb_act){.blocks = blocks, .tile = tile, .tokens = tokens};
        a[i].q = check_buffer(c, entries * 32);
        a[i].scale = check_buffer(c, entries * sizeof(float));
        a[i].bias = check_buffer(c, entries * sizeof(int32_t));
        memset(a[i].q, 0x22, entries * 32);
        memset(a[i].scale, 0x22, entries * sizeof(float));
        memset(a[i].bias, 0x22, entries * sizeof(int32_t));
    }
    float *x = check_buffer(c, n * sizeof *x);
    check_fill(c, x, n, fill);
    const uint32_t b0 = check_below(c, 2) ? check_below(c, blocks) : 0, b1 = b0 ? b0 + check_below(c, blocks - b0 + 1) : blocks;
    check_begin(c, c->have->quantize_name, "n %u tile %u token %u of %u blocks %u..%u %s", n, tile, token, tokens, b0, b1,
                check_fill_name(fill));
    c->have->quantize(&a[0], token, b0, b1, x, n);
    c->want->quantize(&a[1], token, b0, b1, x, n);
    check_same(c, "q", a[0].q, a[1].q, entries * 32, 1);
    check_same(c, "scale", a[0].scale, a[1].scale, entries * sizeof(float), 4);
    check_same(c, "bias", a[0].bias, a[1].bias, entries * sizeof(int32_t), 4);
    check_free_all(c);
}

static void check(struct check *c) {
    for (unsigned i = 0; i < 8 * c->rounds; i++)
        for (int fill = 0; fill < FILLS; fill++)
            one(c, 1 + check_below(c, 300), check_below(c, 2) ? 1 : NB_TILE, (enum fill)fill);
}

struct job {
    nb_quantize_fn *fn;
    struct nb_act a;
    float x[4096];
};

static void run(void *context) {
    struct job *j = context;
    j->fn(&j->a, 0, 0, j->a.blocks, j->x, 4096);
}

static void bench(const struct nb_hal *hal) {
    static int8_t q[4096];
    static float scale[128];
    static int32_t bias[128];
    static struct job j;
    struct check c = {.state = 1};
    j.fn = hal->quantize;
    j.a = (struct nb_act){q, scale, bias, 128, 1, 1};
    check_fill(&c, j.x, 4096, FILL_NORMAL);
    bench_row(hal->quantize_name, "4096, in L1", sizeof j.x, 0, LIMIT_NONE, run, &j);
}

const struct check_op check_quantize = {"quantize", check, bench};
