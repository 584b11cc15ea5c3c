/* SPDX-License-Identifier: Apache-2.0
 * Attention over the cache in ranges of NB_RANGE positions that are aligned absolutely, joined in increasing order even
 * when there is only one: so the bits do not depend on who computed which range. */
#include <string.h>

#include "runtime/graph_internal.h"

struct span {
    uint32_t from, to;       /* positions [from, to) that the query at to - 1 sees */
    uint32_t range0, ranges; /* first range and how many */
};

static struct span visible(uint32_t window, uint32_t position) {
    struct span s = {.from = window && position >= window ? position - window + 1 : 0, .to = position + 1};
    s.range0 = s.from / NB_RANGE;
    s.ranges = position / NB_RANGE - s.range0 + 1;
    return s;
}

static void range_of(const struct span *s, uint32_t r, uint32_t *p0, uint32_t *p1) {
    uint32_t from = (s->range0 + r) * NB_RANGE, to = from + NB_RANGE;
    *p0 = from > s->from ? from : s->from;
    *p1 = to < s->to ? to : s->to;
}

void nb_qk_prepare(const struct nb_graph *g, const struct nb_layer *l, float *x, uint32_t heads, enum nb_role norm,
                   uint32_t token) {
    const struct nb_spec *s = &g->model->spec;
    if (l->vector[norm])
        for (uint32_t h = 0; h < heads; h++) {
            float *head = x + (size_t)h * s->head_dim;
            g->hal->rmsnorm(head, head, l->vector[norm], s->head_dim, s->norm_eps);
        }
    uint32_t n = g->model->ropes[l->rope].n;
    size_t row = ((size_t)l->rope * g->chunk + token) * g->rot;
    if (n) g->hal->rope(x, heads, s->head_dim, 2 * n, g->cos + row, g->sin + row);
}

uint32_t nb_attention_items(const struct nb_graph *g, uint32_t layer) {
    return g->model->spec.kv_heads * visible(g->model->layers[layer].window, g->position).ranges;
}

void nb_attention_decode(struct nb_graph *g, uint32_t layer, uint32_t part, uint32_t parts, unsigned me) {
    const struct nb_spec *s = &g->model->spec;
    const struct nb_layer *l = &g->model->layers[layer];
    struct nb_scratch *w = &g->scratch[me];
    struct span span = visible(l->window, g->position);
    size_t width = (size_t)g->group * s->head_dim;
    uint32_t from, to, prepared = UINT32_MAX;
    nb_share(nb_attention_items(g, layer), part, parts, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint32_t j = i / span.ranges, r = i % span.ranges, p0, p1;
        const struct nb_kv *kv = &g->kv[(size_t)layer * s->kv_heads + j];
        if (prepared != j) {
            memcpy(w->q, g->q + j * width, width * sizeof *w->q);
            nb_qk_prepare(g, l, w->q, g->group, NB_ROLE_Q_NORM, 0);
            prepared = j;
        }
        if (r == span.ranges - 1) {
            memcpy(w->k, g->k + (size_t)j * s->head_dim, s->head_dim * sizeof *w->k);
            nb_qk_prepare(g, l, w->k, 1, NB_ROLE_K_NORM, 0);
            g->kv_store(kv, g->position, w->k, g->v + (size_t)j * s->head_dim);
        }
        range_of(&span, r, &p0, &p1);
        float *out = g->part_out + (size_t)r * s->heads * s->head_dim + j * width;
        const struct nb_attention a = {.q = w->q,
                                       .heads = g->group,
                                       .tokens = 1,
                                       .from = &p0,
                                       .to = &p1,
                                       .scale = s->attn_scale,
                                       .scores = w->scores,
                                       .max = w->max,
                                       .sum = w->sum,
                                       .out = out};
        g->attend(kv, &a);
        for (uint32_t h = 0; h < g->group; h++) {
            size_t at = ((size_t)j * g->group + h) * g->ranges + r;
            g->part_max[at] = w->max[h];
            g->part_sum[at] = w->sum[h];
        }
    }
}

void nb_attention_join(const struct nb_graph *g, uint32_t layer, float *out) {
    const struct nb_spec *s = &g->model->spec;
    struct span span = visible(g->model->layers[layer].window, g->position);
    for (uint32_t h = 0; h < s->heads; h++) {
        size_t at = (size_t)h * g->ranges, column = (size_t)h * s->head_dim;
        g->hal->attend_join(out + column, s->head_dim, span.ranges, g->part_max + at, g->part_sum + at, g->part_out + column,
                            (size_t)s->heads * s->head_dim);
    }
}

/* One kv head's queries of tokens [t0, t1) of the chunk: range after range for all tokens that see something of it, so that
 * a key is fetched and converted once for all of them; then each query's ranges are joined. */
static void attend_run(struct nb_graph *g, uint32_t layer, uint32_t j, uint32_t t0, uint32_t t1, struct nb_scratch *w) {
    const struct nb_spec *s = &g->model->spec;
    const uint32_t window = g->model->layers[layer].window, group = g->group;
    const struct span first = visible(window, g->position + t0), last = visible(window, g->position + t1 - 1);
    const size_t width = (size_t)group * s->head_dim, ldo = (t1 - t0) * width;
    float *q = g->q + (size_t)t0 * g->ld_q + j * width;
    struct nb_attention a = {.ldq = g->ld_q,
                             .heads = group,
                             .from = w->from,
                             .to = w->to,
                             .scale = s->attn_scale,
                             .scores = w->scores,
                             .max = w->max,
                             .sum = w->sum,
                             .ldo = width};
    for (uint32_t range = first.range0; range < last.range0 + last.ranges; range++) {
        uint32_t from = t0, to;
        while (g->position + from < range * NB_RANGE) from++; /* too early to see this range */
        for (to = from; to < t1; to++) {
            const struct span seen = visible(window, g->position + to);
            if (seen.range0 > range) break; /* the window has left it behind */
            range_of(&seen, range - seen.range0, &w->from[to - from], &w->to[to - from]);
        }
        a.tokens = to - from;
        a.q = q + (size_t)(from - t0) * g->ld_q;
        a.out = w->part_out + (range - first.range0) * ldo + (from - t0) * width;
        g->attend(&g->kv[(size_t)layer * s->kv_heads + j], &a);
        for (uint32_t i = 0; i < a.tokens * group; i++) {
            const size_t at = ((from - t0) * group + i) * (size_t)g->ranges + (range - first.range0);
            w->part_max[at] = w->max[i];
            w->part_sum[at] = w->sum[i];
        }
    }
    for (uint32_t t = t0; t < t1; t++) {
        const struct span seen = visible(window, g->position + t);
        const uint32_t skip = seen.range0 - first.range0;
        for (uint32_t h = 0; h < group; h++) {
            const size_t i = (size_t)(t - t0) * group + h, at = i * g->ranges + skip;
            g->hal->attend_join(q + (t - t0) * g->ld_q + h * s->head_dim, s->head_dim, seen.ranges, w->part_max + at,
                                w->part_sum + at, w->part_out + skip * ldo + i * s->head_dim, ldo);
        }
    }
}

/* Tokens of a run: enough queries to share a key, but several runs for every thread */
static uint32_t run_tokens(const struct nb_graph *g, uint32_t n) {
    const uint64_t heads = g->model->spec.kv_heads, enough = 4 * nb_pool_threads(g->pool);
    uint32_t run = NB_QUERIES / g->group ? NB_QUERIES / g->group : 1;
    while (run > 1 && heads * ((n + run - 1) / run) < enough) run = (run + 1) / 2;
    return run;
}

uint32_t nb_attention_runs(const struct nb_graph *g, uint32_t n) {
    const uint32_t run = run_tokens(g, n);
    return g->model->spec.kv_heads * ((n + run - 1) / run);
}

void nb_attention_prefill(struct nb_graph *g, uint32_t layer, uint32_t n, uint32_t part, uint32_t parts, unsigned me) {
    const uint32_t kv_heads = g->model->spec.kv_heads, run = run_tokens(g, n);
    uint32_t from, to;
    nb_share(nb_attention_runs(g, n), part, parts, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        const uint32_t t0 = i / kv_heads * run, t1 = t0 + run < n ? t0 + run : n;
        attend_run(g, layer, i % kv_heads, t0, t1, &g->scratch[me]);
    }
}
