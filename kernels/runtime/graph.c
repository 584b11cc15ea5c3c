/* SPDX-License-Identifier: Apache-2.0
 * Opening a graph: which kernels the feature record needs, and the arena. The plan is walked twice by the same code,
 * first without memory for the size, then to set the pointers, so that the two cannot disagree. */
#include "runtime/graph.h"

#include <sys/mman.h>

#include "runtime/checked.h"
#include "runtime/graph_internal.h"
#include "runtime/memory.h"

struct layout {
    struct nb_plan plan;
    char *base; /* NULL while only the size is wanted */
};

static void *take(struct layout *l, size_t count, size_t each) {
    size_t at = nb_plan_take(&l->plan, count, each);
    return l->base ? l->base + at : NULL;
}

static float *floats(struct layout *l, size_t rows, size_t cols) {
    size_t n;
    if (!nb_mul_size(rows, cols, &n)) l->plan.bad = 1;
    return l->plan.bad ? NULL : take(l, n, sizeof(float));
}

static struct nb_act act(struct layout *l, uint32_t cols, uint32_t tokens, uint32_t tile) {
    struct nb_act a = {.blocks = (cols + NB_BLOCK - 1) / NB_BLOCK, .tile = tile};
    size_t n = (size_t)a.blocks * tokens; /* at most 2^15 blocks and NB_CHUNK_MAX tokens */
    a.q = take(l, n, NB_BLOCK);
    a.scale = take(l, n, sizeof *a.scale);
    a.bias = take(l, n, sizeof *a.bias);
    return a;
}

static void lay_out_kv(struct nb_graph *g, struct layout *l, uint32_t type) {
    const struct nb_spec *s = &g->model->spec;
    size_t count = (size_t)s->layers * s->kv_heads, row = (size_t)s->head_dim * (type == NB_KV_I8 ? 1 : 2);
    struct nb_kv *table = take(l, count, sizeof *table);
    if (table) g->kv = table;
    for (size_t i = 0; i < count; i++) {
        struct nb_kv kv = {.type = type, .head_dim = s->head_dim};
        kv.k = take(l, g->context, row);
        kv.v = take(l, g->context, row);
        if (type == NB_KV_I8) {
            kv.k_scale = take(l, g->context, sizeof(float));
            kv.v_scale = take(l, g->context, sizeof(float));
        }
        if (l->base) g->kv[i] = kv;
    }
}

static void lay_out_scratch(struct nb_graph *g, struct layout *l) {
    const struct nb_spec *s = &g->model->spec;
    unsigned threads = nb_pool_threads(g->pool);
    uint32_t queries = g->group > NB_QUERIES ? g->group : NB_QUERIES;
    struct nb_scratch *table = take(l, threads, sizeof *table);
    for (unsigned i = 0; i < threads; i++) {
        struct nb_scratch w = {0};
        w.h = floats(l, 1, g->ld_hidden > g->ld_q ? g->ld_hidden : g->ld_q);
        w.q = floats(l, g->group, s->head_dim);
        w.k = floats(l, 1, s->head_dim);
        w.scores = floats(l, queries, NB_RANGE);
        w.max = floats(l, 1, queries);
        w.sum = floats(l, 1, queries);
        w.part_max = floats(l, queries, g->ranges);
        w.part_sum = floats(l, queries, g->ranges);
        w.part_out = floats(l, g->ranges, (size_t)queries * s->head_dim);
        w.from = take(l, queries, sizeof *w.from);
        w.to = take(l, queries, sizeof *w.to);
        w.gate = floats(l, NB_FFN_TOKENS, NB_FFN_ROWS);
        w.up = floats(l, NB_FFN_TOKENS, NB_FFN_ROWS);
        (void)take(l, 1, 64); /* no two threads on one cache line pair */
        if (table) table[i] = w;
    }
    g->scratch = table;
}

/* Everything in the arena, in order. */
static void lay_out(struct nb_graph *g, struct layout *l, const struct nb_graph_options *o) {
    const struct nb_spec *s = &g->model->spec;
    size_t mark = l->plan.size;
    lay_out_kv(g, l, o->kv);
    g->kv_size = l->plan.size - mark;
    mark = l->plan.size;
    uint32_t rows = g->chunk, tiles = (rows + NB_TILE - 1) / NB_TILE * NB_TILE, q = s->heads * s->head_dim;
    g->x = floats(l, rows, g->ld_hidden);
    g->q = floats(l, rows, g->ld_q);
    g->k = floats(l, rows, g->ld_kv);
    g->v = floats(l, rows, g->ld_kv);
    g->proj = floats(l, rows, g->ld_hidden);
    g->act_hidden = act(l, s->hidden, tiles, NB_TILE);
    g->act_q = act(l, q, tiles, NB_TILE);
    g->act_ffn = act(l, s->ffn, tiles, NB_TILE);
    g->act_one = act(l, s->hidden > q ? s->hidden : q, 1, 1);
    g->act_one.tokens = 1;
    g->gate = floats(l, 1, g->ld_ffn);
    g->up = floats(l, 1, g->ld_ffn);
    g->cos = floats(l, (size_t)s->ropes * rows, g->rot);
    g->sin = floats(l, (size_t)s->ropes * rows, g->rot);
    g->part_max = floats(l, s->heads, g->ranges);
    g->part_sum = floats(l, s->heads, g->ranges);
    g->part_out = floats(l, g->ranges, q);
    g->logits = floats(l, o->all_logits ? NB_TILE : 1, g->ld_vocab);
    g->activation_size = l->plan.size - mark;
    mark = l->plan.size;
    lay_out_scratch(g, l);
    g->scratch_size = l->plan.size - mark;
    g->extra = take(l, o->extra, 1);
    g->extra_size = o->extra;
}

static uint32_t padded(uint32_t rows) { return (rows + NB_PANEL - 1) / NB_PANEL * NB_PANEL; }

uint32_t nb_graph_context(const struct nb_spec *spec, uint32_t request) {
    if (request) return request;
    return spec->max_positions < NB_DEFAULT_CONTEXT ? spec->max_positions : NB_DEFAULT_CONTEXT;
}

static enum nb_status check_options(struct nb_graph *g, const struct nb_graph_options *o, struct nb_error *err) {
    const struct nb_spec *s = &g->model->spec;
    g->context = nb_graph_context(s, o->context);
    g->all_logits = o->all_logits != 0;
    if (g->context > s->max_positions)
        return nb_fail(err, NB_USAGE, "E_CONTEXT", "context of %u positions, the model allows %u", g->context, s->max_positions);
    g->chunk = o->chunk ? o->chunk : NB_DEFAULT_CHUNK;
    if (g->chunk > NB_CHUNK_MAX)
        return nb_fail(err, NB_USAGE, "E_CHUNK", "chunk of %u tokens, allowed are 1 to %d", g->chunk, NB_CHUNK_MAX);
    if (g->chunk > g->context) g->chunk = g->context;
    return NB_OK;
}

static void choose(struct nb_graph *g, uint32_t kv) {
    const struct nb_spec *s = &g->model->spec;
    const struct nb_hal *hal = g->hal;
    g->attend = kv == NB_KV_I8 ? hal->attend_i8 : hal->attend_f16;
    g->kv_store = kv == NB_KV_I8 ? hal->kv_store_i8 : hal->kv_store_f16;
    g->gated = s->activation == NB_ACT_SILU ? hal->silu_mul : hal->gelu_mul;
    g->ld_hidden = padded(s->hidden);
    g->ld_q = padded(s->heads * s->head_dim);
    g->ld_kv = padded(s->kv_heads * s->head_dim);
    g->ld_ffn = padded(s->ffn);
    g->ld_vocab = padded(s->vocab);
    g->group = s->heads / s->kv_heads;
    g->ranges = (g->context + NB_RANGE - 1) / NB_RANGE;
    g->rot = NB_PANEL;
    for (uint32_t i = 0; i < s->ropes; i++)
        if (g->model->ropes[i].n > g->rot) g->rot = padded(g->model->ropes[i].n);
}

static enum nb_status too_large(const struct nb_graph *g, uint64_t available, struct nb_error *err) {
    return nb_fail(err, NB_RESOURCE, "E_MEMORY",
                   "needs %zu KiB (cache of %u positions %zu, activations of %u "
                   "tokens %zu, threads %zu, text %zu), %llu KiB are left; "
                   "a smaller context, chunk or an i8 cache needs less",
                   g->arena_size >> 10, g->context, g->kv_size >> 10, g->chunk, g->activation_size >> 10, g->scratch_size >> 10,
                   g->extra_size >> 10, (unsigned long long)(available >> 10));
}

static void touch(void *context, unsigned me, unsigned threads) {
    const struct nb_graph *g = context;
    nb_memory_touch(g->arena, g->arena_size, me, threads);
}

enum nb_status nb_graph_open(struct nb_graph *g, const struct nb_model *model, const struct nb_hal *hal, struct nb_pool *pool,
                             const struct nb_graph_options *options, struct nb_error *err) {
    *g = (struct nb_graph){.model = model, .hal = hal, .pool = pool};
    enum nb_status s = check_options(g, options, err);
    if (s) return s;
    choose(g, options->kv);
    struct layout size = {0};
    lay_out(g, &size, options);
    g->arena_size = size.plan.size;
    uint64_t available = nb_memory_available();
    if (size.plan.bad || size.plan.size > available) return too_large(g, available, err);
    g->arena = nb_memory_take(g->arena_size);
    if (!g->arena) return too_large(g, available, err);
    nb_pool_run(pool, touch, g);
    struct layout place = {.base = g->arena};
    lay_out(g, &place, options);
    return NB_OK;
}

void nb_graph_close(struct nb_graph *g) {
    if (g->arena) munmap(g->arena, g->arena_size);
    *g = (struct nb_graph){0};
}
