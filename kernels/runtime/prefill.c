/* SPDX-License-Identifier: Apache-2.0
 * A chunk of tokens through the model. Matrix products run over tiles of NB_TILE tokens; a strip of tiles whose
 * activations fit into the second-level cache meets panel after panel, so each panel is read once a strip. Work on
 * tokens (norms, rotation, quantization) is split by tokens. */
#include <string.h>

#include "runtime/forward.h"
#include "runtime/graph_internal.h"
#include "runtime/rope.h"

enum { STRIP_BYTES = 384 * 1024, PIECE_PANELS = 4, PIECE_TOKENS = 16 };

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
static struct nb_act cut(const struct nb_act *a, uint32_t tile0, uint32_t tiles, uint32_t block0) {
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

/* Items of a matrix product: (strip, panel over all matrices) in that order. */
static uint32_t items_of(const struct nb_act *a, uint32_t panels_all) {
    const uint32_t strip = strip_tiles(a);
    return panels_all * ((tiles_of(a->tokens) + strip - 1) / strip);
}

/* A part of y_i = w_i a for up to three matrices. */
static void gemm(const struct nb_graph *g, const struct nb_mat *const *w, float *const *y, const uint32_t *ldy, int count,
                 const struct nb_act *a, uint32_t part, uint32_t parts) {
    uint32_t total = 0, tiles = tiles_of(a->tokens), strip = strip_tiles(a), from, to;
    for (int i = 0; i < count; i++) total += w[i]->panels;
    nb_share(items_of(a, total), part, parts, &from, &to);
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

static void gemm_one(const struct nb_graph *g, const struct nb_mat *w, float *y, uint32_t ldy, const struct nb_act *a,
                     uint32_t part, uint32_t parts) {
    gemm(g, &w, &y, &ldy, 1, a, part, parts);
}

/* gate, up, act and quantization for NB_FFN_ROWS rows from panel0 and `tiles` tiles from tile0, in private memory. */
static void gate_up_item(struct nb_graph *g, const struct nb_layer *l, uint32_t panel0, uint32_t tile0, uint32_t tiles,
                         struct nb_scratch *w) {
    const uint32_t ffn = g->model->spec.ffn, step = NB_FFN_ROWS / NB_PANEL, row0 = panel0 * NB_PANEL;
    const uint32_t count = l->gate.panels - panel0 < step ? l->gate.panels - panel0 : step;
    const uint32_t rows = ffn - row0 < NB_FFN_ROWS ? ffn - row0 : NB_FFN_ROWS;
    const struct nb_mat gate = panels(&l->gate, panel0, count), up = panels(&l->up, panel0, count);
    const struct nb_act a = cut(&g->act_hidden, tile0, tiles, 0);
    struct nb_act out = cut(&g->act_ffn, tile0, tiles, row0 / NB_BLOCK);
    g->hal->gemm[gate.format](&gate, &a, w->gate, NB_FFN_ROWS, 0, count, 0, tiles);
    g->hal->gemm[up.format](&up, &a, w->up, NB_FFN_ROWS, 0, count, 0, tiles);
    g->gated(w->gate, w->gate, w->up, a.tokens * NB_FFN_ROWS);
    for (uint32_t t = 0; t < a.tokens; t++)
        g->hal->quantize(&out, t, 0, (rows + NB_BLOCK - 1) / NB_BLOCK, w->gate + (size_t)t * NB_FFN_ROWS, rows);
}

static uint32_t ffn_strip(const struct nb_graph *g) {
    const uint32_t strip = strip_tiles(&g->act_hidden);
    return strip < NB_FFN_TOKENS / NB_TILE ? strip : NB_FFN_TOKENS / NB_TILE;
}

static uint32_t ffn_steps(const struct nb_layer *l) {
    return (l->gate.panels + NB_FFN_ROWS / NB_PANEL - 1) / (NB_FFN_ROWS / NB_PANEL);
}

static uint32_t ffn_items(const struct nb_graph *g, const struct nb_layer *l) {
    const uint32_t strip = ffn_strip(g);
    return ffn_steps(l) * ((tiles_of(g->act_hidden.tokens) + strip - 1) / strip);
}

static void gate_up(struct nb_graph *g, const struct nb_layer *l, uint32_t part, uint32_t parts, struct nb_scratch *w) {
    const uint32_t strip = ffn_strip(g), steps = ffn_steps(l), tiles = tiles_of(g->act_hidden.tokens);
    uint32_t from, to;
    nb_share(ffn_items(g, l), part, parts, &from, &to);
    for (; from < to; from++) {
        const uint32_t tile0 = from / steps * strip;
        const uint32_t here = tiles - tile0 < strip ? tiles - tile0 : strip;
        gate_up_item(g, l, from % steps * (NB_FFN_ROWS / NB_PANEL), tile0, here, w);
    }
}

static void norm_quantize(const struct nb_graph *g, uint32_t t, const float *weight, float *scratch) {
    const struct nb_spec *s = &g->model->spec;
    struct nb_act a = g->act_hidden;
    g->hal->rmsnorm(scratch, g->x + (size_t)t * g->ld_hidden, weight, s->hidden, s->norm_eps);
    g->hal->quantize(&a, t, 0, a.blocks, scratch, s->hidden);
}

static void embed(const struct nb_graph *g, uint32_t t, int32_t id) {
    const struct nb_model *m = g->model;
    g->hal->embed(g->x + (size_t)t * g->ld_hidden, &m->embed, (uint32_t)id, m->spec.embed_scale);
    for (uint32_t i = 0; i < m->spec.ropes; i++) {
        const size_t row = ((size_t)i * g->chunk + t) * g->rot;
        nb_rope_row(g->cos + row, g->sin + row, g->position + t, m->ropes[i].inv_freq, m->ropes[i].n);
    }
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

enum { NORM, QKV, STORE, ATTEND, QUANTIZE, O, FFN_NORM, GATE_UP, DOWN, STAGES };

static uint32_t token_pieces(const struct chunk *c) { return nb_pieces(c->g, c->n, PIECE_TOKENS); }

static uint32_t open_stage(void *context, uint32_t stage) {
    const struct chunk *c = context;
    struct nb_graph *g = c->g;
    const uint32_t end = g->model->spec.layers * STAGES;
    const struct nb_layer *l = &g->model->layers[stage / STAGES];
    if (stage < end && nb_stopped(g)) return 0;
    if (stage >= end) { /* what the last layer adds, then the head */
        if (stage == end) return c->want == NB_WANT_NOTHING ? 0 : token_pieces(c);
        if (stage > end + 1 || c->want != NB_WANT_LAST) return 0;
        return nb_head_open(g, g->x + (size_t)(c->n - 1) * g->ld_hidden);
    }
    switch (stage % STAGES) {
    case QKV: return nb_pieces(g, items_of(&g->act_hidden, l->q.panels + l->k.panels + l->v.panels), PIECE_PANELS);
    case ATTEND: return nb_pieces(g, nb_attention_runs(g, c->n), 1);
    case O: return nb_pieces(g, items_of(&g->act_q, l->o.panels), PIECE_PANELS);
    case GATE_UP: return nb_pieces(g, ffn_items(g, l), 1);
    case DOWN: return nb_pieces(g, items_of(&g->act_ffn, l->down.panels), PIECE_PANELS);
    default: return token_pieces(c);
    }
}

/* The stages that go by tokens, for one of them; `layer` may be one past the last. */
static void work_token(const struct chunk *c, uint32_t layer, uint32_t stage, uint32_t t, float *h) {
    struct nb_graph *g = c->g;
    const struct nb_model *m = g->model;
    const struct nb_layer *l = &m->layers[layer];
    float *x = g->x + (size_t)t * g->ld_hidden, *proj = g->proj + (size_t)t * g->ld_hidden;
    struct nb_act a = g->act_q;
    switch (stage) {
    case NORM:
        if (layer == 0) embed(g, t, c->ids[t]);
        else nb_residual(g, x, proj, l[-1].vector[NB_ROLE_FFN_POST_NORM], h);
        if (layer < m->spec.layers) norm_quantize(g, t, l->vector[NB_ROLE_ATTN_NORM], h);
        break;
    case STORE: prepare_and_store(g, layer, t); break;
    case QUANTIZE: g->hal->quantize(&a, t, 0, a.blocks, g->q + (size_t)t * g->ld_q, m->spec.heads * m->spec.head_dim); break;
    default:
        nb_residual(g, x, proj, l->vector[NB_ROLE_ATTN_POST_NORM], h);
        norm_quantize(g, t, l->vector[NB_ROLE_FFN_NORM], h);
        break;
    }
}

static void work_stage(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned me) {
    const struct chunk *c = context;
    struct nb_graph *g = c->g;
    const uint32_t layer = stage / STAGES;
    const struct nb_layer *l = &g->model->layers[layer];
    uint32_t from, to;
    if (stage > g->model->spec.layers * STAGES) {
        nb_head_work(g, part, parts);
        return;
    }
    switch (stage % STAGES) {
    case QKV:
        gemm(g, (const struct nb_mat *const[]){&l->q, &l->k, &l->v}, (float *const[]){g->q, g->k, g->v},
             (const uint32_t[]){g->ld_q, g->ld_kv, g->ld_kv}, 3, &g->act_hidden, part, parts);
        break;
    case ATTEND: nb_attention_prefill(g, layer, c->n, part, parts, me); break;
    case O: gemm_one(g, &l->o, g->proj, g->ld_hidden, &g->act_q, part, parts); break;
    case GATE_UP: gate_up(g, l, part, parts, &g->scratch[me]); break;
    case DOWN: gemm_one(g, &l->down, g->proj, g->ld_hidden, &g->act_ffn, part, parts); break;
    default:
        nb_share(c->n, part, parts, &from, &to);
        for (uint32_t t = from; t < to; t++) work_token(c, layer, stage % STAGES, t, g->scratch[me].h);
        break;
    }
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
    static const struct nb_job job = {open_stage, work_stage};
    struct chunk c = {.g = g, .ids = ids, .n = n, .want = want};
    nb_pool_do(g->pool, &job, &c);
}

static void final_norm(void *context, unsigned part, unsigned parts) {
    const struct chunk *c = context;
    uint32_t from, to;
    nb_share(c->n, part, parts, &from, &to);
    for (uint32_t t = from; t < to; t++) norm_quantize(c->g, t, c->g->model->final_norm, c->g->scratch[part].h);
}

static uint32_t open_head(void *context, uint32_t stage) {
    const struct chunk *c = context;
    return stage == 0 ? nb_pieces(c->g, c->g->model->head.panels, PIECE_PANELS) : 0;
}

static void work_head(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned me) {
    const struct chunk *c = context;
    struct nb_graph *g = c->g;
    const struct nb_act a = cut(&g->act_hidden, c->first, 1, 0);
    (void)stage;
    (void)me;
    gemm_one(g, &g->model->head, g->logits, g->ld_vocab, &a, part, parts);
}

void nb_head_all(struct nb_graph *g, uint32_t n, uint32_t first, nb_logits_fn *sink, void *context) {
    static const struct nb_job job = {open_head, work_head};
    struct chunk c = {.g = g, .n = n};
    nb_pool_run(g->pool, final_norm, &c);
    for (; c.first < tiles_of(n); c.first++) {
        uint32_t t = c.first * NB_TILE, count = n - t < NB_TILE ? n - t : NB_TILE;
        nb_pool_do(g->pool, &job, &c);
        sink(context, first + t, count, g->logits, g->ld_vocab);
        if (t + count == n && count > 1) /* whoever wants only the last ones looks at the first row */
            memcpy(g->logits, g->logits + (size_t)(count - 1) * g->ld_vocab, g->ld_vocab * sizeof *g->logits);
    }
}
