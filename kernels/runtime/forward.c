/* SPDX-License-Identifier: Apache-2.0
 * One token through the model, in five stages a layer that all threads work on, each with what is short and serial before it:
 *
 *   norm: q|k|v    attention by (kv head, range)    join: o    norm: gate|up, act, quantize own blocks    down
 *
 * Longer inputs go through prefill.c; this file also cuts them into chunks. */
#include <string.h>

#include "runtime/forward.h"
#include "runtime/graph_internal.h"
#include "runtime/rope.h"

/* A piece of weights takes a microsecond or more to read, and some ten nanoseconds to take; each processor has a few. */
enum { PIECE_BYTES = 32 * 1024, PIECE_RANGES = 4, PIECES_EACH = 4 };

uint32_t nb_pieces(const struct nb_graph *g, uint32_t items, uint32_t most) {
    uint32_t each = items / (PIECES_EACH * nb_pool_together(g->pool));
    each = each > most ? most : each;
    each = each > items / NB_PIECES_MAX ? each : items / NB_PIECES_MAX + 1;
    return (items + each - 1) / each;
}

static uint32_t pieces_of(const struct nb_graph *g, uint32_t items, size_t bytes_each) {
    return nb_pieces(g, items, bytes_each < PIECE_BYTES ? (uint32_t)(PIECE_BYTES / bytes_each) : 1);
}

/* A part of y_i = w_i a for up to three matrices that lie one after the other in the weights. */
static void gemv(const struct nb_graph *g, const struct nb_mat *const *w, float *const *y, int count, const struct nb_act *a,
                 uint32_t part, uint32_t parts) {
    uint32_t total = 0, base = 0, from, to;
    for (int i = 0; i < count; i++) total += w[i]->panels;
    nb_share(total, part, parts, &from, &to);
    for (int i = 0; i < count; base += w[i++]->panels) {
        const uint32_t p0 = from > base ? from - base : 0, end = to > base ? to - base : 0;
        const uint32_t p1 = end < w[i]->panels ? end : w[i]->panels;
        if (p0 < p1) g->hal->gemv[w[i]->format](w[i], a, y[i], 0, p0, p1, 0, 1);
    }
}

static void gemv_one(const struct nb_graph *g, const struct nb_mat *w, const struct nb_act *a, float *y, uint32_t part,
                     uint32_t parts) {
    gemv(g, &w, &y, 1, a, part, parts);
}

static void quantize(const struct nb_graph *g, struct nb_act *a, const float *x, uint32_t n) {
    a->blocks = (n + NB_BLOCK - 1) / NB_BLOCK;
    g->hal->quantize(a, 0, 0, a->blocks, x, n);
}

static void norm_quantize(struct nb_graph *g, const float *x, const float *weight) {
    const struct nb_spec *s = &g->model->spec;
    g->hal->rmsnorm(g->scratch->h, x, weight, s->hidden, s->norm_eps);
    quantize(g, &g->act_one, g->scratch->h, s->hidden);
}

void nb_residual(const struct nb_graph *g, float *x, const float *proj, const float *post, float *scratch) {
    const struct nb_spec *s = &g->model->spec;
    if (post) {
        g->hal->rmsnorm(scratch, proj, post, s->hidden, s->norm_eps);
        proj = scratch;
    }
    g->hal->add(x, proj, s->hidden);
}

uint32_t nb_head_open(struct nb_graph *g, const float *x) {
    norm_quantize(g, x, g->model->final_norm);
    return pieces_of(g, g->model->head.panels, g->model->head.panel_stride);
}

void nb_head_work(struct nb_graph *g, uint32_t part, uint32_t parts) {
    gemv_one(g, &g->model->head, &g->act_one, g->logits, part, parts);
}

/* gate, up, act and the quantization of down's input: items are blocks of 32 rows, so that nobody waits. */
static void gate_up(struct nb_graph *g, const struct nb_layer *l, struct nb_act *out, uint32_t part, uint32_t parts) {
    const uint32_t ffn = g->model->spec.ffn;
    const struct nb_act *a = &g->act_one;
    uint32_t block0, block1;
    nb_share(out->blocks, part, parts, &block0, &block1);
    const uint32_t row0 = block0 * NB_BLOCK, row1 = block1 * NB_BLOCK < ffn ? block1 * NB_BLOCK : ffn;
    const uint32_t panel0 = row0 / NB_PANEL, panel1 = (row1 + NB_PANEL - 1) / NB_PANEL;
    g->hal->gemv[l->gate.format](&l->gate, a, g->gate, 0, panel0, panel1, 0, 1);
    g->hal->gemv[l->up.format](&l->up, a, g->up, 0, panel0, panel1, 0, 1);
    g->gated(g->gate + row0, g->gate + row0, g->up + row0, row1 - row0);
    g->hal->quantize(out, 0, block0, block1, g->gate, ffn);
}

struct step {
    struct nb_graph *g;
    struct nb_act ffn; /* the first token of act_ffn's memory */
    int32_t id;
    enum nb_want want;
};

enum { QKV, ATTEND, O, GATE_UP, DOWN, STAGES };

/* What is too short to share: residual stream, norms and quantization, done by whoever opens the stage. */
static uint32_t open_stage(void *context, uint32_t stage) {
    const struct step *step = context;
    struct nb_graph *g = step->g;
    const struct nb_spec *s = &g->model->spec;
    const struct nb_layer *l = &g->model->layers[stage / STAGES];
    float *h = g->scratch->h;
    if (stage > s->layers * STAGES || nb_stopped(g)) return 0;
    switch (stage % STAGES) {
    case QKV:
        if (stage == 0) g->hal->embed(g->x, &g->model->embed, (uint32_t)step->id, s->embed_scale);
        else nb_residual(g, g->x, g->proj, l[-1].vector[NB_ROLE_FFN_POST_NORM], h);
        if (stage == s->layers * STAGES) return step->want == NB_WANT_NOTHING ? 0 : nb_head_open(g, g->x);
        norm_quantize(g, g->x, l->vector[NB_ROLE_ATTN_NORM]);
        return pieces_of(g, l->q.panels + l->k.panels + l->v.panels, l->q.panel_stride);
    case ATTEND: return nb_pieces(g, nb_attention_items(g, stage / STAGES), PIECE_RANGES);
    case O:
        nb_attention_join(g, stage / STAGES, h);
        quantize(g, &g->act_one, h, s->heads * s->head_dim);
        return pieces_of(g, l->o.panels, l->o.panel_stride);
    case GATE_UP:
        nb_residual(g, g->x, g->proj, l->vector[NB_ROLE_ATTN_POST_NORM], h);
        norm_quantize(g, g->x, l->vector[NB_ROLE_FFN_NORM]);
        return pieces_of(g, step->ffn.blocks, 4 * l->gate.panel_stride);
    default: return pieces_of(g, l->down.panels, l->down.panel_stride);
    }
}

static void work_stage(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned me) {
    struct step *step = context;
    struct nb_graph *g = step->g;
    const struct nb_layer *l = &g->model->layers[stage / STAGES];
    const struct nb_act *a = &g->act_one;
    if (stage == g->model->spec.layers * STAGES) {
        nb_head_work(g, part, parts);
        return;
    }
    switch (stage % STAGES) {
    case QKV:
        gemv(g, (const struct nb_mat *const[]){&l->q, &l->k, &l->v}, (float *const[]){g->q, g->k, g->v}, 3, a, part, parts);
        break;
    case ATTEND: nb_attention_decode(g, stage / STAGES, part, parts, me); break;
    case O: gemv_one(g, &l->o, a, g->proj, part, parts); break;
    case GATE_UP: gate_up(g, l, &step->ffn, part, parts); break;
    default: gemv_one(g, &l->down, &step->ffn, g->proj, part, parts); break;
    }
}

static void one_token(struct nb_graph *g, int32_t id, enum nb_want want) {
    for (uint32_t i = 0; i < g->model->spec.ropes; i++) {
        size_t row = (size_t)i * g->chunk * g->rot;
        nb_rope_row(g->cos + row, g->sin + row, g->position, g->model->ropes[i].inv_freq, g->model->ropes[i].n);
    }
    static const struct nb_job job = {open_stage, work_stage};
    struct step step = {g, g->act_ffn, id, want};
    step.ffn.tile = step.ffn.tokens = 1;
    nb_pool_do(g->pool, &job, &step);
}

int nb_forward(struct nb_graph *g, const int32_t *ids, uint32_t n, enum nb_want want, nb_logits_fn *sink, void *context) {
    g->stopped = 0;
    for (uint32_t done = 0; done < n;) {
        uint32_t count = n - done < g->chunk ? n - done : g->chunk;
        enum nb_want here = want == NB_WANT_LAST && done + count < n ? NB_WANT_NOTHING : want;
        if (count == 1) one_token(g, ids[done], here);
        else nb_prefill(g, ids + done, count, here);
        if (g->stopped) return 0;
        if (want == NB_WANT_ALL) {
            if (count == 1) sink(context, done, 1, g->logits, g->ld_vocab);
            else nb_head_all(g, count, done, sink, context);
        }
        g->position += count;
        done += count;
    }
    return 1;
}

size_t nb_graph_token_bytes(const struct nb_graph *g) {
    const struct nb_model *m = g->model;
    size_t bytes = m->head.panels * m->head.panel_stride;
    for (uint32_t i = 0; i < m->spec.layers; i++) {
        const struct nb_layer *l = &m->layers[i];
        const struct nb_mat *const mats[7] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (int j = 0; j < 7; j++) bytes += mats[j]->panels * mats[j]->panel_stride;
    }
    return bytes;
}

uint64_t nb_graph_token_macs(const struct nb_graph *g) {
    const struct nb_spec *s = &g->model->spec;
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    return s->layers * (s->hidden * (2 * q + 2 * kv) + 3ull * s->hidden * s->ffn);
}
