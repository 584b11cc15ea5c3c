/* SPDX-License-Identifier: Apache-2.0
 * attend: both cache types, 1 to 9 heads that share it, head sizes 16 to 256 (24 too), ranges that start and end
 * anywhere inside a multiple of 256. */
#include "checkops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct nb_kv cache(struct check *c, uint32_t type, uint32_t head_dim, uint32_t positions, enum fill fill) {
    const size_t size = (size_t)positions * head_dim * (type == NB_KV_F16 ? 2 : 1),
                 scales = type == NB_KV_F16 ? 0 : positions * sizeof(float);
    struct nb_kv kv = {.k = check_buffer(c, size), .v = check_buffer(c, size), .type = type, .head_dim = head_dim};
    kv.k_scale = check_buffer(c, scales);
    kv.v_scale = check_buffer(c, scales);
    float k[256], v[256];
    for (uint32_t p = 0; p < positions; p++) {
        check_fill(c, k, head_dim, fill);
        check_fill(c, v, head_dim, check_below(c, 4) ? FILL_NORMAL : FILL_RANGE);
        for (uint32_t i = 0; i < head_dim; i++) { /* past 65504 lie infinity and NaN, for which no kernel promises bits */
            k[i] = k[i] > 65504 ? 65504 : k[i] < -65504 ? -65504 : k[i];
            v[i] = v[i] > 65504 ? 65504 : v[i] < -65504 ? -65504 : v[i];
        }
        (type == NB_KV_F16 ? c->want->kv_store_f16 : c->want->kv_store_i8)(&kv, p, k, v);
    }
    return kv;
}

static void one(struct check *c, uint32_t type, uint32_t heads, uint32_t head_dim, uint32_t p0, uint32_t p1, enum fill fill) {
    const struct nb_kv kv = cache(c, type, head_dim, p1, fill);
    const size_t n = (size_t)heads * head_dim, scratch = (size_t)heads * NB_RANGE * sizeof(float);
    float *q = check_buffer(c, n * sizeof *q);
    check_fill(c, q, n, fill);
    float *max[2], *sum[2], *out[2];
    nb_attend_fn *fn[2] = {type == NB_KV_F16 ? c->have->attend_f16 : c->have->attend_i8,
                           type == NB_KV_F16 ? c->want->attend_f16 : c->want->attend_i8};
    check_begin(c, type == NB_KV_F16 ? c->have->attend_f16_name : c->have->attend_i8_name,
                "heads %u head_dim %u positions %u..%u %s", heads, head_dim, p0, p1, check_fill_name(fill));
    const float scale = check_below(c, 2) ? 0.125f : 0.0883883461f;
    for (int i = 0; i < 2; i++) {
        max[i] = check_buffer(c, heads * sizeof(float));
        sum[i] = check_buffer(c, heads * sizeof(float));
        out[i] = check_buffer(c, n * sizeof(float));
        fn[i](q, heads, &kv, p0, p1, scale, check_buffer(c, scratch), max[i], sum[i], out[i]);
    }
    check_same(c, "max", max[0], max[1], heads * sizeof(float), 4);
    check_same(c, "sum", sum[0], sum[1], heads * sizeof(float), 4);
    check_same(c, "out", out[0], out[1], n * sizeof(float), 4);
    check_free_all(c);
}

static void check(struct check *c) {
    static const uint32_t dims[] = {16, 24, 32, 40, 64, 72, 80, 96, 128, 192, 256};
    for (unsigned i = 0; i < 6 * c->rounds; i++)
        for (uint32_t type = NB_KV_F16; type <= NB_KV_I8; type++)
            for (int fill = 0; fill < FILLS; fill++) {
                const uint32_t base = check_below(c, 8) ? 0 : NB_RANGE, p0 = base + (check_below(c, 2) ? check_below(c, 100) : 0);
                one(c, type, 1 + check_below(c, 9), check_pick(c, dims, sizeof dims / sizeof *dims), p0,
                    p0 + 1 + check_below(c, 60), (enum fill)fill);
            }
    for (uint32_t type = NB_KV_F16; type <= NB_KV_I8; type++) one(c, type, 3, 64, 0, NB_RANGE, FILL_NORMAL);
}

struct job {
    nb_attend_fn *fn;
    struct nb_kv kv;
    uint32_t heads;
    float q[8 * 128], scores[8 * NB_RANGE], max[8], sum[8], out[8 * 128];
};

static void run(void *context) {
    struct job *j = context;
    j->fn(j->q, j->heads, &j->kv, 0, NB_RANGE, 0.125f, j->scores, j->max, j->sum, j->out);
}

static void bench(const struct nb_hal *hal) {
    static const uint32_t shapes[][2] = {{3, 64}, {4, 128}, {1, 128}};
    static struct job j;
    for (uint32_t type = NB_KV_F16; type <= NB_KV_I8; type++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct check c = {.want = hal, .have = hal, .state = 1};
            j.fn = type == NB_KV_F16 ? hal->attend_f16 : hal->attend_i8;
            j.heads = shapes[s][0];
            j.kv = cache(&c, type, shapes[s][1], NB_RANGE, FILL_NORMAL);
            check_fill(&c, j.q, (size_t)j.heads * shapes[s][1], FILL_NORMAL);
            char what[64];
            snprintf(what, sizeof what, "%u head%s of %u, 256 positions", j.heads, j.heads == 1 ? "" : "s", shapes[s][1]);
            bench_row(type == NB_KV_F16 ? hal->attend_f16_name : hal->attend_i8_name, what,
                      (type == NB_KV_F16 ? 4.0 : 2.0) * 256 * shapes[s][1], 4.0 * 256 * shapes[s][1] * j.heads, run, &j);
            check_free_all(&c);
        }
}

const struct check_op check_attend = {"attend", check, bench};
