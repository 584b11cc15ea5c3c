/* SPDX-License-Identifier: Apache-2.0
 * One token through the model, on all threads at once with five barriers a layer. Every thread keeps its own copy of
 * the residual stream and normalises and quantizes it itself: a few hundred operations instead of a barrier.
 *
 *   norm, q|k|v  BARRIER  attention by (kv head, range)  BARRIER  join, o  BARRIER
 *   norm, gate|up, act, quantize own blocks  BARRIER  down  BARRIER
 *
 * Longer inputs go through prefill.c; this file also cuts them into chunks. */
#include <string.h>

#include "runtime/forward.h"
#include "runtime/graph_internal.h"
#include "runtime/rope.h"

/* Thread `me`'s run of panels over several matrices that lie one after the other in the weights, equal in bytes. */
static void run_of_panels(const struct nb_mat *const *mats, int count, unsigned me, unsigned threads, uint32_t (*run)[2]) {
    size_t total = 0, at = 0;
    for (int i = 0; i < count; i++) total += mats[i]->panels * mats[i]->panel_stride;
    const size_t each = total / threads;
    const size_t cut[2] = {each * me, me + 1 == threads ? total : each * (me + 1)};
    for (int i = 0; i < count; i++) {
        size_t stride = mats[i]->panel_stride, length = mats[i]->panels * stride;
        for (int side = 0; side < 2; side++) {
            size_t in = cut[side] < at ? 0 : cut[side] - at < length ? cut[side] - at : length;
            run[i][side] = (uint32_t)((in + stride - 1) / stride);
        }
        at += length;
    }
}

static void gemv(const struct nb_graph *g, const struct nb_mat *w, const struct nb_act *a, float *y, const uint32_t run[2]) {
    if (run[0] < run[1]) g->hal->gemv[w->format](w, a, y, 0, run[0], run[1], 0, 1);
}

static void gemv_share(const struct nb_graph *g, const struct nb_mat *w, const struct nb_act *a, float *y, unsigned me,
                       unsigned threads) {
    uint32_t run[2];
    nb_share(w->panels, me, threads, &run[0], &run[1]);
    gemv(g, w, a, y, run);
}

static void quantize(const struct nb_graph *g, struct nb_act *a, const float *x, uint32_t n) {
    a->blocks = (n + NB_BLOCK - 1) / NB_BLOCK;
    g->hal->quantize(a, 0, 0, a->blocks, x, n);
}

static void norm_quantize(const struct nb_graph *g, struct nb_scratch *w, const float *weight) {
    const struct nb_spec *s = &g->model->spec;
    g->hal->rmsnorm(w->h, w->x, weight, s->hidden, s->norm_eps);
    quantize(g, &w->act, w->h, s->hidden);
}

void nb_residual(const struct nb_graph *g, float *x, const float *proj, const float *post, float *scratch) {
    const struct nb_spec *s = &g->model->spec;
    if (post) {
        g->hal->rmsnorm(scratch, proj, post, s->hidden, s->norm_eps);
        proj = scratch;
    }
    g->hal->add(x, proj, s->hidden);
}

void nb_head_last(struct nb_graph *g, const float *x, unsigned me, unsigned threads) {
    const struct nb_spec *s = &g->model->spec;
    struct nb_scratch *w = &g->scratch[me];
    g->hal->rmsnorm(w->h, x, g->model->final_norm, s->hidden, s->norm_eps);
    quantize(g, &w->act, w->h, s->hidden);
    gemv_share(g, &g->model->head, &w->act, g->logits, me, threads);
}

/* gate, up, act and the quantization of down's input: a share is whole blocks of 32 rows, so that nobody waits. */
static void gate_up(struct nb_graph *g, const struct nb_layer *l, struct nb_act *out, unsigned me, unsigned threads) {
    const uint32_t ffn = g->model->spec.ffn;
    struct nb_scratch *w = &g->scratch[me];
    uint32_t block0, block1;
    nb_share(out->blocks, me, threads, &block0, &block1);
    if (block0 == block1) return;
    const uint32_t row0 = block0 * NB_BLOCK, row1 = block1 * NB_BLOCK < ffn ? block1 * NB_BLOCK : ffn;
    const uint32_t run[2] = {row0 / NB_PANEL, (row1 + NB_PANEL - 1) / NB_PANEL};
    gemv(g, &l->gate, &w->act, g->gate, run);
    gemv(g, &l->up, &w->act, g->up, run);
    g->gated(g->gate + row0, g->gate + row0, g->up + row0, row1 - row0);
    g->hal->quantize(out, 0, block0, block1, g->gate, ffn);
}

struct step {
    struct nb_graph *g;
    int32_t id;
    enum nb_want want;
};

static void decode_layer(struct nb_graph *g, uint32_t layer, struct nb_act *ffn, unsigned me, unsigned threads) {
    const struct nb_spec *s = &g->model->spec;
    const struct nb_layer *l = &g->model->layers[layer];
    struct nb_scratch *w = &g->scratch[me];
    const struct nb_mat *const qkv[3] = {&l->q, &l->k, &l->v};
    uint32_t run[3][2];
    norm_quantize(g, w, l->vector[NB_ROLE_ATTN_NORM]);
    run_of_panels(qkv, 3, me, threads, run);
    gemv(g, &l->q, &w->act, g->q, run[0]);
    gemv(g, &l->k, &w->act, g->k, run[1]);
    gemv(g, &l->v, &w->act, g->v, run[2]);
    nb_pool_barrier(g->pool);
    nb_attention_decode(g, layer, me, threads);
    nb_pool_barrier(g->pool);
    nb_attention_join(g, layer, w->h);
    quantize(g, &w->act, w->h, s->heads * s->head_dim);
    gemv_share(g, &l->o, &w->act, g->proj, me, threads);
    nb_pool_barrier(g->pool);
    nb_residual(g, w->x, g->proj, l->vector[NB_ROLE_ATTN_POST_NORM], w->h);
    norm_quantize(g, w, l->vector[NB_ROLE_FFN_NORM]);
    gate_up(g, l, ffn, me, threads);
    nb_pool_barrier(g->pool);
    gemv_share(g, &l->down, ffn, g->proj, me, threads);
    nb_poll_stop(g, me);
    nb_pool_barrier(g->pool);
    nb_residual(g, w->x, g->proj, l->vector[NB_ROLE_FFN_POST_NORM], w->h);
}

static void decode(void *context, unsigned me, unsigned threads) {
    const struct step *step = context;
    struct nb_graph *g = step->g;
    struct nb_scratch *w = &g->scratch[me];
    struct nb_act ffn = g->act_ffn; /* the same memory as one token */
    ffn.tile = ffn.tokens = 1;
    g->hal->embed(w->x, &g->model->embed, (uint32_t)step->id, g->model->spec.embed_scale);
    for (uint32_t layer = 0; layer < g->model->spec.layers && !g->stopped; layer++) decode_layer(g, layer, &ffn, me, threads);
    if (!g->stopped && step->want != NB_WANT_NOTHING) nb_head_last(g, w->x, me, threads);
}

static void one_token(struct nb_graph *g, int32_t id, enum nb_want want) {
    for (uint32_t i = 0; i < g->model->spec.ropes; i++) {
        size_t row = (size_t)i * g->chunk * g->rot;
        nb_rope_row(g->cos + row, g->sin + row, g->position, g->model->ropes[i].inv_freq, g->model->ropes[i].n);
    }
    struct step step = {g, id, want};
    nb_pool_run(g->pool, decode, &step);
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
