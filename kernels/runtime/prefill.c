/* SPDX-License-Identifier: Apache-2.0
 * A chunk of tokens through the model. Matrix products run over tiles of NB_TILE tokens; a strip of tiles whose
 * activations fit into the second-level cache meets panel after panel, so each panel is read once a strip. Work on
 * tokens (norms, rotation, quantization) is split by tokens: the owner of a token is the same thread throughout. */
#include <string.h>

#include "runtime/forward.h"
#include "runtime/graph_internal.h"
#include "runtime/rope.h"

enum { STRIP_BYTES = 384 * 1024 };

struct chunk {
    struct nb_graph *g;
    const int32_t *ids;
    uint32_t n, first; /* first: index of the tile for the head */
    enum nb_want want;
};

static uint32_t tiles_of(uint32_t tokens) { return (tokens + NB_TILE - 1) / NB_TILE; }

static uint32_t strip_tiles(const struct nb_act *a) {
    uint32_t tiles = STRIP_BYTES / (a->blocks * NB_TILE * (NB_BLOCK + 8));
    return tiles ? tiles : 1;
}

/* Tiles [tile0, tile0 + tiles) of a, as activations of their own; block0 shifts which block is the first. */
static struct nb_act part(const struct nb_act *a, uint32_t tile0, uint32_t tiles, uint32_t block0) {
    struct nb_act p = *a;
    size_t e = ((size_t)tile0 * a->blocks + block0) * a->tile;
    p.q += e * NB_BLOCK;
    p.scale += e;
    p.bias += e;
    p.tokens = a->tokens - tile0 * a->tile;
    if (p.tokens > tiles * a->tile) p.tokens = tiles * a->tile;
    return p;
}

/* Panels [panel0, panel0 + count) of w as a matrix of its own. */
static struct nb_mat panels(const struct nb_mat *w, uint32_t panel0, uint32_t count) {
    struct nb_mat p = *w;
    p.data += panel0 * w->panel_stride;
    p.panels = count;
    p.rows = w->rows - panel0 * NB_PANEL;
    if (p.rows > count * NB_PANEL) p.rows = count * NB_PANEL;
    return p;
}

/* y_i = w_i a for up to three matrices: items (strip, panel over all matrices) in that order, cut evenly. */
static void gemm(const struct nb_graph *g, const struct nb_mat *const *w, float *const *y, const uint32_t *ldy, int count,
                 const struct nb_act *a, unsigned me, unsigned threads) {
    uint32_t total = 0, tiles = tiles_of(a->tokens), strip = strip_tiles(a), from, to;
    for (int i = 0; i < count; i++) total += w[i]->panels;
    nb_share((uint64_t)total * ((tiles + strip - 1) / strip), me, threads, &from, &to);
    while (from < to) {
        uint32_t s = from / total, tile0 = s * strip, tile1 = tile0 + strip < tiles ? tile0 + strip : tiles;
        uint32_t panel0 = from - s * total, panel1 = to - s * total < total ? to - s * total : total;
        uint32_t base = 0;
        for (int i = 0; i < count; base += w[i]->panels, i++) {
            uint32_t p0 = panel0 > base ? panel0 - base : 0, p1 = panel1 > base ? panel1 - base : 0;
            if (p1 > w[i]->panels) p1 = w[i]->panels;
            if (p0 < p1) g->hal->gemm[w[i]->format](w[i], a, y[i], ldy[i], p0, p1, tile0, tile1);
        }
        from = s * total + panel1;
    }
}

/* gate, up, act and quantization for NB_FFN_ROWS rows and at most NB_FFN_TOKENS tokens an item, in private memory. */
static void gate_up(struct nb_graph *g, const struct nb_layer *l, unsigned me, unsigned threads) {
    const uint32_t ffn = g->model->spec.ffn, step = NB_FFN_ROWS / NB_PANEL, tiles = tiles_of(g->act_hidden.tokens);
    uint32_t strip = strip_tiles(&g->act_hidden), items = (l->gate.panels + step - 1) / step, from, to;
    struct nb_scratch *w = &g->scratch[me];
    if (strip > NB_FFN_TOKENS / NB_TILE) strip = NB_FFN_TOKENS / NB_TILE;
    nb_share((uint64_t)items * ((tiles + strip - 1) / strip), me, threads, &from, &to);
    for (; from < to; from++) {
        uint32_t tile0 = from / items * strip, panel0 = from % items * step;
        uint32_t count = l->gate.panels - panel0 < step ? l->gate.panels - panel0 : step;
        uint32_t here = tiles - tile0 < strip ? tiles - tile0 : strip;
        const struct nb_mat gate = panels(&l->gate, panel0, count), up = panels(&l->up, panel0, count);
        const struct nb_act a = part(&g->act_hidden, tile0, here, 0);
        g->hal->gemm[gate.format](&gate, &a, w->gate, NB_FFN_ROWS, 0, count, 0, here);
        g->hal->gemm[up.format](&up, &a, w->up, NB_FFN_ROWS, 0, count, 0, here);
        g->gated(w->gate, w->gate, w->up, a.tokens * NB_FFN_ROWS);
        uint32_t row0 = panel0 * NB_PANEL, rows = ffn - row0 < NB_FFN_ROWS ? ffn - row0 : NB_FFN_ROWS;
        struct nb_act out = part(&g->act_ffn, tile0, here, row0 / NB_BLOCK);
        for (uint32_t t = 0; t < a.tokens; t++)
            g->hal->quantize(&out, t, 0, (rows + NB_BLOCK - 1) / NB_BLOCK, w->gate + (size_t)t * NB_FFN_ROWS, rows);
    }
}

static void norm_quantize(const struct nb_graph *g, uint32_t t, const float *weight, float *scratch) {
    const struct nb_spec *s = &g->model->spec;
    struct nb_act a = g->act_hidden;
    g->hal->rmsnorm(scratch, g->x + (size_t)t * g->ld_hidden, weight, s->hidden, s->norm_eps);
    g->hal->quantize(&a, t, 0, a.blocks, scratch, s->hidden);
}

static void prepare_and_store(struct nb_graph *g, uint32_t layer, uint32_t t) {
    const struct nb_spec *s = &g->model->spec;
    const struct nb_layer *l = &g->model->layers[layer];
    float *q = g->q + (size_t)t * g->ld_q, *k = g->k + (size_t)t * g->ld_kv, *v = g->v + (size_t)t * g->ld_kv;
    nb_qk_prepare(g, l, q, s->heads, NB_ROLE_Q_NORM, t);
    nb_qk_prepare(g, l, k, s->kv_heads, NB_ROLE_K_NORM, t);
    for (uint32_t j = 0; j < s->kv_heads; j++)
        g->kv_store(&g->kv[(size_t)layer * s->kv_heads + j], g->position + t, k + (size_t)j * s->head_dim,
                    v + (size_t)j * s->head_dim);
}

static void prefill_layer(struct nb_graph *g, uint32_t layer, uint32_t n, unsigned me, unsigned threads) {
    const struct nb_spec *s = &g->model->spec;
    const struct nb_layer *l = &g->model->layers[layer];
    float *h = g->scratch[me].h;
    uint32_t from, to;
    nb_share(n, me, threads, &from, &to);
    for (uint32_t t = from; t < to; t++) norm_quantize(g, t, l->vector[NB_ROLE_ATTN_NORM], h);
    nb_pool_barrier(g->pool);
    gemm(g, (const struct nb_mat *const[]){&l->q, &l->k, &l->v}, (float *const[]){g->q, g->k, g->v},
         (const uint32_t[]){g->ld_q, g->ld_kv, g->ld_kv}, 3, &g->act_hidden, me, threads);
    nb_pool_barrier(g->pool);
    for (uint32_t t = from; t < to; t++) prepare_and_store(g, layer, t);
    nb_pool_barrier(g->pool);
    nb_attention_prefill(g, layer, n, me, threads);
    nb_pool_barrier(g->pool);
    for (uint32_t t = from; t < to; t++) {
        struct nb_act a = g->act_q;
        g->hal->quantize(&a, t, 0, a.blocks, g->q + (size_t)t * g->ld_q, s->heads * s->head_dim);
    }
    nb_pool_barrier(g->pool);
    gemm(g, (const struct nb_mat *const[]){&l->o}, (float *const[]){g->proj}, &g->ld_hidden, 1, &g->act_q, me, threads);
    nb_pool_barrier(g->pool);
    for (uint32_t t = from; t < to; t++) {
        nb_residual(g, g->x + (size_t)t * g->ld_hidden, g->proj + (size_t)t * g->ld_hidden, l->vector[NB_ROLE_ATTN_POST_NORM], h);
        norm_quantize(g, t, l->vector[NB_ROLE_FFN_NORM], h);
    }
    nb_pool_barrier(g->pool);
    gate_up(g, l, me, threads);
    nb_pool_barrier(g->pool);
    gemm(g, (const struct nb_mat *const[]){&l->down}, (float *const[]){g->proj}, &g->ld_hidden, 1, &g->act_ffn, me, threads);
    nb_poll_stop(g, me);
    nb_pool_barrier(g->pool);
    for (uint32_t t = from; t < to; t++)
        nb_residual(g, g->x + (size_t)t * g->ld_hidden, g->proj + (size_t)t * g->ld_hidden, l->vector[NB_ROLE_FFN_POST_NORM], h);
}

static void prefill(void *context, unsigned me, unsigned threads) {
    const struct chunk *c = context;
    struct nb_graph *g = c->g;
    const struct nb_model *m = g->model;
    uint32_t from, to;
    nb_share(c->n, me, threads, &from, &to);
    for (uint32_t t = from; t < to; t++) {
        g->hal->embed(g->x + (size_t)t * g->ld_hidden, &m->embed, (uint32_t)c->ids[t], m->spec.embed_scale);
        for (uint32_t i = 0; i < m->spec.ropes; i++) {
            size_t row = ((size_t)i * g->chunk + t) * g->rot;
            nb_rope_row(g->cos + row, g->sin + row, g->position + t, m->ropes[i].inv_freq, m->ropes[i].n);
        }
    }
    for (uint32_t layer = 0; layer < m->spec.layers && !g->stopped; layer++) prefill_layer(g, layer, c->n, me, threads);
    if (g->stopped || c->want != NB_WANT_LAST) return;
    nb_pool_barrier(g->pool);
    nb_head_last(g, g->x + (size_t)(c->n - 1) * g->ld_hidden, me, threads);
}

/* The contract wants zeros for the tokens that fill up the last tile. */
static void set_tokens(struct nb_act *a, uint32_t n) {
    a->tokens = n;
    uint32_t unused = tiles_of(n) * NB_TILE - n;
    for (uint32_t b = 0; unused && b < a->blocks; b++) {
        size_t e = ((size_t)(n / NB_TILE) * a->blocks + b) * NB_TILE + n % NB_TILE;
        memset(a->q + e * NB_BLOCK, 0, (size_t)unused * NB_BLOCK);
        memset(a->scale + e, 0, unused * sizeof *a->scale);
        memset(a->bias + e, 0, unused * sizeof *a->bias);
    }
}

void nb_prefill(struct nb_graph *g, const int32_t *ids, uint32_t n, enum nb_want want) {
    set_tokens(&g->act_hidden, n);
    set_tokens(&g->act_q, n);
    set_tokens(&g->act_ffn, n);
    struct chunk c = {.g = g, .ids = ids, .n = n, .want = want};
    nb_pool_run(g->pool, prefill, &c);
}

static void final_norm(void *context, unsigned me, unsigned threads) {
    const struct chunk *c = context;
    uint32_t from, to;
    nb_share(c->n, me, threads, &from, &to);
    for (uint32_t t = from; t < to; t++) norm_quantize(c->g, t, c->g->model->final_norm, c->g->scratch[me].h);
}

static void head_tile(void *context, unsigned me, unsigned threads) {
    const struct chunk *c = context;
    struct nb_graph *g = c->g;
    const struct nb_act a = part(&g->act_hidden, c->first, 1, 0);
    gemm(g, (const struct nb_mat *const[]){&g->model->head}, (float *const[]){g->logits}, &g->ld_vocab, 1, &a, me, threads);
}

void nb_head_all(struct nb_graph *g, uint32_t n, uint32_t first, nb_logits_fn *sink, void *context) {
    struct chunk c = {.g = g, .n = n};
    nb_pool_run(g->pool, final_norm, &c);
    for (; c.first < tiles_of(n); c.first++) {
        uint32_t t = c.first * NB_TILE, count = n - t < NB_TILE ? n - t : NB_TILE;
        nb_pool_run(g->pool, head_tile, &c);
        sink(context, first + t, count, g->logits, g->ld_vocab);
        if (t + count == n && count > 1) /* whoever wants only the last ones looks at the first row */
            memcpy(g->logits, g->logits + (size_t)(count - 1) * g->ld_vocab, g->ld_vocab * sizeof *g->logits);
    }
}
