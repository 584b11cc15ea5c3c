/* SPDX-License-Identifier: Apache-2.0
 * attend: both cache types, 1 to 9 heads that share it, 1 to 16 tokens, head sizes 16 to 256 (24 too), ranges that start
 * and end anywhere inside a multiple of 256, windows, capped scores. */
#include "checkops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys are `fill`, values FILL_NORMAL except those of the positions that `wild` picks with a chance of one in four. */
static struct nb_kv cache(struct check *c, uint32_t type, uint32_t head_dim, uint32_t positions, enum fill fill, int wild) {
    const size_t size = (size_t)positions * head_dim * (type == NB_KV_F16 ? 2 : 1),
                 scales = type == NB_KV_F16 ? 0 : positions * sizeof(float);
    struct nb_kv kv = {.k = check_buffer(c, size), .v = check_buffer(c, size), .type = type, .head_dim = head_dim};
    kv.k_scale = check_buffer(c, scales);
    kv.v_scale = check_buffer(c, scales);
    float k[256], v[256];
    for (uint32_t p = 0; p < positions; p++) {
        check_fill(c, k, head_dim, fill);
        check_fill(c, v, head_dim, wild && check_below(c, 4) == 0 ? FILL_RANGE : FILL_NORMAL);
        for (uint32_t i = 0; i < head_dim; i++) { /* past 65504 lie infinity and NaN, for which no kernel promises bits */
            k[i] = k[i] > 65504 ? 65504 : k[i] < -65504 ? -65504 : k[i];
            v[i] = v[i] > 65504 ? 65504 : v[i] < -65504 ? -65504 : v[i];
        }
        (type == NB_KV_F16 ? c->want->kv_store_f16 : c->want->kv_store_i8)(&kv, p, k, v);
    }
    return kv;
}

struct shape {
    uint32_t type, heads, head_dim, tokens;
    uint32_t base, span; /* positions [base, base + span) inside one range */
    uint32_t window;
};

static void one(struct check *c, const struct shape *s, enum fill fill) {
    const uint32_t end = s->base + s->span, count = s->tokens * s->heads;
    const struct nb_kv kv = cache(c, s->type, s->head_dim, end, fill, 1);
    const size_t ldq = (size_t)(s->heads + check_below(c, 2)) * s->head_dim,
                 ldo = (size_t)(s->heads + check_below(c, 2)) * s->head_dim;
    const size_t q_size = (s->tokens - 1) * ldq + (size_t)s->heads * s->head_dim;
    const size_t o_size = (s->tokens - 1) * ldo + (size_t)s->heads * s->head_dim;
    float *q = check_buffer(c, q_size * sizeof *q);
    check_fill(c, q, q_size, fill);
    uint32_t *from = check_buffer(c, s->tokens * sizeof *from), *to = check_buffer(c, s->tokens * sizeof *to);
    for (uint32_t t = 0; t < s->tokens; t++) { /* the last sees all, each earlier one a position less */
        const uint32_t hidden = s->tokens - 1 - t;
        to[t] = s->span > hidden ? end - hidden : s->base + 1;
        from[t] = to[t] > s->base + s->window ? to[t] - s->window : s->base;
    }
    struct nb_attention a[2];
    nb_attend_fn *fn[2] = {s->type == NB_KV_F16 ? c->have->attend_f16 : c->have->attend_i8,
                           s->type == NB_KV_F16 ? c->want->attend_f16 : c->want->attend_i8};
    check_begin(c, s->type == NB_KV_F16 ? c->have->attend_f16_name : c->have->attend_i8_name,
                "heads %u head_dim %u tokens %u positions %u..%u window %u %s", s->heads, s->head_dim, s->tokens, s->base, end,
                s->window, check_fill_name(fill));
    const float scale = check_below(c, 2) ? 0.125f : 0.0883883461f, cap = check_below(c, 3) ? 0.0f : 50.0f;
    for (int i = 0; i < 2; i++) {
        a[i] = (struct nb_attention){.q = q,
                                     .ldq = ldq,
                                     .heads = s->heads,
                                     .tokens = s->tokens,
                                     .from = from,
                                     .to = to,
                                     .scale = scale,
                                     .cap = cap,
                                     .ldo = ldo};
        a[i].scores = check_buffer(c, (size_t)count * NB_RANGE * sizeof(float));
        a[i].max = check_buffer(c, count * sizeof(float));
        a[i].sum = check_buffer(c, count * sizeof(float));
        a[i].out = check_buffer(c, o_size * sizeof(float));
        memset(a[i].out, 0x11, o_size * sizeof(float));
        fn[i](&kv, &a[i]);
    }
    check_same(c, "max", a[0].max, a[1].max, count * sizeof(float), 4);
    check_same(c, "sum", a[0].sum, a[1].sum, count * sizeof(float), 4);
    check_same(c, "out", a[0].out, a[1].out, o_size * sizeof(float), 4);
    check_free_all(c);
}

static void check(struct check *c) {
    static const uint32_t dims[] = {16, 24, 32, 40, 64, 72, 80, 96, 128, 192, 256}, runs[] = {1, 1, 1, 2, 3, 4, 5, 8, 10, 16};
    for (unsigned i = 0; i < 6 * c->rounds; i++)
        for (uint32_t type = NB_KV_F16; type <= NB_KV_I8; type++)
            for (int fill = 0; fill < FILLS; fill++) {
                struct shape s = {
                    .type = type, .heads = 1 + check_below(c, 9), .tokens = check_pick(c, runs, sizeof runs / sizeof *runs)};
                s.head_dim = check_pick(c, dims, sizeof dims / sizeof *dims);
                s.base = (check_below(c, 8) ? 0 : NB_RANGE) + (check_below(c, 2) ? check_below(c, 100) : 0);
                s.span = 1 + check_below(c, 60);
                s.window = check_below(c, 2) ? NB_RANGE : 1 + check_below(c, check_below(c, 2) ? 4 : 40);
                one(c, &s, (enum fill)fill);
            }
    for (uint32_t type = NB_KV_F16; type <= NB_KV_I8; type++)
        for (uint32_t tokens = 1; tokens < 12; tokens += 9)
            one(c,
                &(struct shape){.type = type, .heads = 3, .head_dim = 64, .tokens = tokens, .span = NB_RANGE, .window = NB_RANGE},
                FILL_NORMAL);
}

enum { MOST_HEADS = 8, MOST_TOKENS = 10, MOST_DIM = 128, MOST = MOST_HEADS * MOST_TOKENS };
struct job {
    nb_attend_fn *fn;
    struct nb_kv kv;
    struct nb_attention a;
    uint32_t from[MOST_TOKENS], to[MOST_TOKENS];
    float q[MOST * MOST_DIM], scores[MOST * NB_RANGE], max[MOST], sum[MOST], out[MOST * MOST_DIM];
};

static void run(void *context) {
    struct job *j = context;
    j->fn(&j->kv, &j->a);
}

static void bench_one(const struct nb_hal *hal, uint32_t type, uint32_t heads, uint32_t head_dim, uint32_t tokens) {
    static struct job j;
    struct check c = {.want = hal, .have = hal, .state = 1};
    j.fn = type == NB_KV_F16 ? hal->attend_f16 : hal->attend_i8;
    j.kv = cache(&c, type, head_dim, NB_RANGE, FILL_NORMAL, 0);
    const size_t ld = (size_t)heads * head_dim;
    j.a = (struct nb_attention){.q = j.q,
                                .ldq = ld,
                                .heads = heads,
                                .tokens = tokens,
                                .from = j.from,
                                .to = j.to,
                                .scale = 0.125f,
                                .scores = j.scores,
                                .max = j.max,
                                .sum = j.sum,
                                .out = j.out,
                                .ldo = ld};
    for (uint32_t t = 0; t < tokens; t++) j.to[t] = NB_RANGE;
    check_fill(&c, j.q, ld * tokens, FILL_NORMAL);
    char what[64];
    snprintf(what, sizeof what, "%u head%s of %u, %u token%s, 256 positions", heads, heads == 1 ? "" : "s", head_dim, tokens,
             tokens == 1 ? "" : "s");
    bench_row(type == NB_KV_F16 ? hal->attend_f16_name : hal->attend_i8_name, what,
              tokens == 1 ? (type == NB_KV_F16 ? 4.0 : 2.0) * (double)NB_RANGE * head_dim : 0,
              4.0 * (double)NB_RANGE * (double)(ld * tokens), LIMIT_NONE, run, &j);
    check_free_all(&c);
}

static void bench(const struct nb_hal *hal) {
    static const uint32_t shapes[][3] = {{3, 64, 1}, {4, 128, 1}, {6, 128, 1}, {1, 128, 1}, {3, 64, 10}, {4, 128, 8}};
    for (uint32_t type = NB_KV_F16; type <= NB_KV_I8; type++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            bench_one(hal, type, shapes[s][0], shapes[s][1], shapes[s][2]);
}

const struct check_op check_attend = {"attend", check, bench};
