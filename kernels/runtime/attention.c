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

void nb_attention_decode(struct nb_graph *g, uint32_t layer, unsigned me, unsigned threads) {
    const struct nb_spec *s = &g->model->spec;
    const struct nb_layer *l = &g->model->layers[layer];
    struct nb_scratch *w = &g->scratch[me];
    struct span span = visible(l->window, g->position);
    size_t width = (size_t)g->group * s->head_dim;
    uint32_t from, to, prepared = UINT32_MAX;
    nb_share((uint64_t)s->kv_heads * span.ranges, me, threads, &from, &to);
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
        g->attend(w->q, g->group, kv, p0, p1, s->attn_scale, w->scores, w->max, w->sum, out);
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

static void attend_token(struct nb_graph *g, uint32_t layer, uint32_t j, uint32_t t, struct nb_scratch *w) {
    const struct nb_spec *s = &g->model->spec;
    struct span span = visible(g->model->layers[layer].window, g->position + t);
    size_t width = (size_t)g->group * s->head_dim;
    float *q = g->q + (size_t)t * g->ld_q + j * width;
    for (uint32_t r = 0; r < span.ranges; r++) {
        uint32_t p0, p1;
        range_of(&span, r, &p0, &p1);
        g->attend(q, g->group, &g->kv[(size_t)layer * s->kv_heads + j], p0, p1, s->attn_scale, w->scores, w->max, w->sum,
                  w->part_out + r * width);
        for (uint32_t h = 0; h < g->group; h++) {
            w->part_max[(size_t)h * g->ranges + r] = w->max[h];
            w->part_sum[(size_t)h * g->ranges + r] = w->sum[h];
        }
    }
    for (uint32_t h = 0; h < g->group; h++) {
        size_t at = (size_t)h * g->ranges, column = (size_t)h * s->head_dim;
        g->hal->attend_join(q + column, s->head_dim, span.ranges, w->part_max + at, w->part_sum + at, w->part_out + column,
                            width);
    }
}

void nb_attention_prefill(struct nb_graph *g, uint32_t layer, uint32_t n, unsigned me, unsigned threads) {
    for (uint32_t j = 0; j < g->model->spec.kv_heads; j++)
        for (uint32_t t = me; t < n; t += threads) attend_token(g, layer, j, t, &g->scratch[me]);
}
