/* SPDX-License-Identifier: Apache-2.0
 * One model, one sequence: opening, feeding tokens, generating. Everything that later calls need is in the arena. */
#include "runtime/engine.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/checked.h"

enum { TEXT_PER_POSITION = 16, TEXT_SPARE = 65536 };

enum nb_status nb_check_cpu(struct nb_error *err) {
    const uint32_t floor = nb_isa_floor(), cpu = nb_cpu_isa();
    if (!(floor & ~cpu)) return NB_OK;
    return nb_fail(err, NB_PLATFORM, "E_CPU", "this build needs %s, this CPU has %s", nb_isa_name(floor), nb_isa_name(cpu));
}

enum nb_status nb_choose_isa(const char *text, uint32_t *isa, struct nb_error *err) {
    const uint32_t cpu = nb_cpu_isa();
    enum nb_status s = nb_check_cpu(err);
    if (s) return s;
    *isa = cpu;
    if (!text) return NB_OK;
    if (!nb_isa_parse(text, isa))
        return nb_fail(err, NB_USAGE, "E_ISA_UNKNOWN", "level '%.40s' is unknown or not built into this program", text);
    if (*isa & ~cpu)
        return nb_fail(err, NB_PLATFORM, "E_ISA_MISSING",
                       "level '%.40s' needs instructions that this CPU or its system does not have (it has %s)", text,
                       nb_isa_name(cpu));
    return NB_OK;
}

/* Pieces of the arena's extra part; called with base NULL for the size. */
static int lay_out(struct nb_engine *e, uint32_t context, char *base, size_t *size) {
    struct nb_plan plan = {0};
    e->text_limit = (size_t)context * TEXT_PER_POSITION + TEXT_SPARE;
    e->ids_capacity = e->has_tokenizer ? nb_tokenizer_bound(&e->tokenizer, e->text_limit) : 0;
    if (e->ids_capacity < context) e->ids_capacity = context;
    size_t scratch = e->has_tokenizer ? nb_tokenizer_scratch(&e->tokenizer, e->text_limit) : 0;
    size_t history = nb_plan_take(&plan, context, sizeof(int32_t)), ids = nb_plan_take(&plan, e->ids_capacity, sizeof(int32_t));
    size_t scratch_at = nb_plan_take(&plan, scratch, 1), out = nb_plan_take(&plan, NB_STREAM_OUT, 1);
    size_t values = nb_plan_take(&plan, e->tokens, sizeof(float));
    size_t candidates = nb_plan_take(&plan, e->tokens, sizeof(struct nb_candidate));
    *size = plan.size;
    if (!base || plan.bad) return !plan.bad;
    e->history = (int32_t *)(void *)(base + history);
    e->ids = (int32_t *)(void *)(base + ids);
    e->scratch = base + scratch_at;
    e->out = base + out;
    e->sampler.values = (float *)(void *)(base + values);
    e->sampler.candidates = (struct nb_candidate *)(void *)(base + candidates);
    return 1;
}

static enum nb_status open_text(struct nb_engine *e, struct nb_error *err) {
    const struct nb_model *m = &e->model;
    e->tokens = m->spec.vocab;
    if (m->tokenizer.size) {
        enum nb_status s = nb_tokenizer_open(&e->tokenizer, m->tokenizer.data, m->tokenizer.size, err);
        if (s) return s;
        e->has_tokenizer = 1;
        if (e->tokenizer.tokens < e->tokens) e->tokens = e->tokenizer.tokens;
    }
    if (!e->has_tokenizer || !m->chat.size) return NB_OK;
    return nb_chat_open(&e->chat, m->chat.data, m->chat.size, err);
}

static enum nb_status open_all(struct nb_engine *e, const char *path, const struct nb_options *o, struct nb_error *err) {
    uint32_t isa;
    if (o->kv > NB_KV_I8 || o->map_mode > NB_MAP_READ) return nb_fail(err, NB_USAGE, "E_OPTION", "unknown kv type or map mode");
    enum nb_status s = nb_choose_isa(o->isa, &isa, err);
    if (s) return s;
    nb_hal_init(&e->hal, isa);
    s = nb_model_open(&e->model, path, (enum nb_map_mode)o->map_mode, err);
    if (!s) s = open_text(e, err);
    if (!s) s = nb_pool_open(&e->pool, o->threads ? o->threads : nb_pool_default_threads(), err);
    if (s) return s;
    uint32_t context = nb_graph_context(&e->model.spec, o->context);
    struct nb_graph_options graph = {.context = context, .chunk = o->chunk, .kv = o->kv, .all_logits = o->all_logits};
    if (!lay_out(e, context, NULL, &graph.extra))
        return nb_fail(err, NB_RESOURCE, "E_MEMORY", "a context of %u positions is too large", context);
    s = nb_graph_open(&e->graph, &e->model, &e->hal, e->pool, &graph, err);
    if (s) return s;
    (void)lay_out(e, context, e->graph.extra, &graph.extra);
    e->graph.stop = &e->stop;
    e->sampler.tokens = e->tokens;
    nb_reset(e);
    return NB_OK;
}

enum nb_status nb_open(const char *path, const struct nb_options *options, struct nb_engine **out, struct nb_error *err) {
    *out = NULL;
    if (options->size != sizeof *options)
        return nb_fail(err, NB_USAGE, "E_ABI", "options of %u bytes, this library has %zu", options->size, sizeof *options);
    struct nb_engine *e = calloc(1, sizeof *e);
    if (!e) return nb_fail(err, NB_RESOURCE, "E_MEMORY", "no memory");
    enum nb_status s = open_all(e, path, options, err);
    if (s) nb_close(e);
    else *out = e;
    return s;
}

void nb_close(struct nb_engine *e) {
    if (!e) return;
    nb_graph_close(&e->graph);
    nb_pool_close(e->pool);
    nb_model_close(&e->model);
    free(e);
}

void nb_reset(struct nb_engine *e) {
    e->graph.position = 0;
    e->pending = -1;
    e->finish = NB_FINISH_LENGTH; /* nothing to continue until nb_begin */
    e->stop = 0;
}

void nb_stop(struct nb_engine *e) { e->stop = 1; }

static enum nb_status no_tokenizer(struct nb_error *err) {
    return nb_fail(err, NB_INPUT, "E_TOK_NONE", "has no tokenizer: it takes token ids only");
}

static enum nb_status hand_out(struct nb_engine *e, size_t n, int32_t *ids, size_t capacity, size_t *count,
                               struct nb_error *err) {
    *count = n;
    if (n > capacity) return nb_fail(err, NB_RESOURCE, "E_CAPACITY", "%zu tokens, there is room for %zu", n, capacity);
    if (n) memcpy(ids, e->ids, n * sizeof *ids);
    return NB_OK;
}

static enum nb_status check_text(const struct nb_engine *e, size_t length, struct nb_error *err) {
    if (length <= e->text_limit) return NB_OK;
    return nb_fail(err, NB_INPUT, "E_PROMPT_TOO_LONG", "a text of %zu bytes, allowed are %zu with a context of %u tokens", length,
                   e->text_limit, e->graph.context);
}

enum nb_status nb_encode(struct nb_engine *e, const char *text, size_t length, uint32_t flags, int32_t *ids, size_t capacity,
                         size_t *count, struct nb_error *err) {
    size_t n;
    *count = 0;
    if (!e->has_tokenizer) return no_tokenizer(err);
    enum nb_status s = check_text(e, length, err);
    if (!s) s = nb_tokenizer_encode(&e->tokenizer, text, length, flags, e->ids, &n, e->scratch, err);
    return s ? s : hand_out(e, n, ids, capacity, count, err);
}

size_t nb_decode(const struct nb_engine *e, int32_t id, uint32_t flags, int first, char *out) {
    return e->has_tokenizer ? nb_tokenizer_piece(&e->tokenizer, id, flags, first, out) : 0;
}

enum nb_status nb_chat(struct nb_engine *e, uint32_t turn, const char *system, const char *user, int32_t *ids, size_t capacity,
                       size_t *count, struct nb_error *err) {
    size_t n, system_length = system ? strlen(system) : 0, user_length = strlen(user), both;
    *count = 0;
    if (!e->has_tokenizer) return no_tokenizer(err);
    if (!e->chat.count) return nb_fail(err, NB_INPUT, "E_CHAT_NONE", "has no chat mode: its template could not be compiled");
    if (!nb_add_size(system_length, user_length, &both)) both = SIZE_MAX;
    enum nb_status s = check_text(e, both, err);
    if (!s)
        s = nb_chat_turn(&e->chat, &e->tokenizer, turn, system, system_length, user, user_length, e->ids, e->ids_capacity, &n,
                         e->scratch, err);
    return s ? s : hand_out(e, n, ids, capacity, count, err);
}

static enum nb_status check_ids(const struct nb_engine *e, const int32_t *ids, size_t n, struct nb_error *err) {
    size_t room = e->graph.context - e->graph.position - (e->pending >= 0);
    if (e->graph.position + (e->pending >= 0) > e->graph.context) room = 0;
    if (n > room)
        return nb_fail(err, NB_INPUT, "E_PROMPT_TOO_LONG", "%zu tokens, the context of %u has room for %zu", n, e->graph.context,
                       room);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->model.spec.vocab)
            return nb_fail(err, NB_INPUT, "E_TOKEN", "token %d is not in the vocabulary of %u", ids[i], e->model.spec.vocab);
    return NB_OK;
}

/* ids are checked and fit. */
static enum nb_status forward(struct nb_engine *e, const int32_t *ids, uint32_t n, enum nb_want want, nb_logits_fn *sink,
                              void *context, struct nb_error *err) {
    if (n == 0) return NB_OK;
    memcpy(e->history + e->graph.position, ids, n * sizeof *ids);
    if (!nb_forward(&e->graph, ids, n, want, sink, context)) return nb_fail(err, NB_BUSY, "E_INTERRUPTED", "interrupted");
    return NB_OK;
}

/* The token that generation chose last and that nothing needed until now. */
static enum nb_status feed_pending(struct nb_engine *e, enum nb_want want, struct nb_error *err) {
    if (e->pending < 0) return NB_OK;
    int32_t id = e->pending;
    enum nb_status s = forward(e, &id, 1, want, NULL, NULL, err);
    if (!s) e->pending = -1;
    return s;
}

enum nb_status nb_feed(struct nb_engine *e, const int32_t *ids, size_t n, struct nb_error *err) {
    enum nb_status s = check_ids(e, ids, n, err);
    if (!s) s = feed_pending(e, n ? NB_WANT_NOTHING : NB_WANT_LAST, err);
    return s ? s : forward(e, ids, (uint32_t)n, NB_WANT_LAST, NULL, NULL, err);
}

struct rows {
    float *out;
    uint32_t vocab;
};

static void copy_rows(void *context, uint32_t first, uint32_t count, const float *logits, size_t stride) {
    const struct rows *r = context;
    for (uint32_t i = 0; i < count; i++)
        memcpy(r->out + (size_t)(first + i) * r->vocab, logits + i * stride, r->vocab * sizeof *r->out);
}

enum nb_status nb_feed_rows(struct nb_engine *e, const int32_t *ids, size_t n, nb_logits_fn *sink, void *context,
                            struct nb_error *err) {
    if (!e->graph.all_logits) return nb_fail(err, NB_USAGE, "E_OPTION", "the engine was opened without all_logits");
    enum nb_status s = check_ids(e, ids, n, err);
    if (!s) s = feed_pending(e, NB_WANT_NOTHING, err);
    return s ? s : forward(e, ids, (uint32_t)n, NB_WANT_ALL, sink, context, err);
}

enum nb_status nb_eval(struct nb_engine *e, const int32_t *ids, size_t n, float *out, struct nb_error *err) {
    struct rows rows = {out, e->model.spec.vocab};
    return nb_feed_rows(e, ids, n, copy_rows, &rows, err);
}

const float *nb_logits(const struct nb_engine *e) { return e->graph.logits; }

enum nb_status nb_begin(struct nb_engine *e, const struct nb_generation *g, struct nb_error *err) {
    if (g->size != sizeof *g)
        return nb_fail(err, NB_USAGE, "E_ABI", "settings of %u bytes, this library has %zu", g->size, sizeof *g);
    const struct nb_sampling sampling = {.temperature = g->temperature,
                                         .top_p = g->top_p,
                                         .min_p = g->min_p,
                                         .repeat = g->repeat,
                                         .top_k = g->top_k,
                                         .repeat_window = g->repeat_window,
                                         .seed = g->seed};
    enum nb_status s = nb_sampler_start(&e->sampler, &sampling, err);
    if (!s) s = nb_stream_start(&e->stream, g->stop, g->stop_count, err);
    if (!s && e->graph.position == 0)
        s = nb_fail(err, NB_USAGE, "E_PROMPT_EMPTY", "nothing was fed: there is no token to continue from");
    if (s) return s;
    e->generated = 0;
    e->max_tokens = g->max_tokens ? g->max_tokens : UINT32_MAX;
    e->finish = NB_GOING;
    e->stop = 0;
    return NB_OK;
}

int32_t nb_choose(struct nb_engine *e, const float *logits, const int32_t *history, size_t length) {
    return nb_sample(&e->sampler, logits, history, length);
}

static enum nb_status finish(struct nb_engine *e, enum nb_finish why, struct nb_piece *piece) {
    e->finish = why;
    piece->finish = why;
    piece->length += (uint32_t)nb_stream_finish(&e->stream, e->out + piece->length);
    return NB_OK;
}

enum nb_status nb_next(struct nb_engine *e, struct nb_piece *piece, struct nb_error *err) {
    *piece = (struct nb_piece){.text = e->out, .id = -1, .finish = e->finish};
    if (e->finish != NB_GOING) return NB_OK;
    if (e->stop) return finish(e, NB_FINISH_INTERRUPTED, piece);
    if (e->generated == e->max_tokens || (e->pending >= 0 && e->graph.position == e->graph.context))
        return finish(e, NB_FINISH_LENGTH, piece);
    if (feed_pending(e, NB_WANT_LAST, err)) return finish(e, NB_FINISH_INTERRUPTED, piece);
    int32_t id = nb_sample(&e->sampler, e->graph.logits, e->history, e->graph.position);
    piece->id = id;
    if (e->has_tokenizer && nb_tokenizer_is_stop(&e->tokenizer, id)) return finish(e, NB_FINISH_STOP, piece);
    e->pending = id;
    e->generated++;
    char bytes[NB_TOK_PIECE_MAX];
    size_t n = nb_decode(e, id, 0, 0, bytes);
    piece->length = (uint32_t)nb_stream_push(&e->stream, bytes, n, e->out);
    return e->stream.stopped ? finish(e, NB_FINISH_STOP, piece) : NB_OK;
}
