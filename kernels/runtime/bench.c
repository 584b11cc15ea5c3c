/* SPDX-License-Identifier: Apache-2.0
 * The same calls that generation makes, timed between measurements of what limits them: how fast the same threads can
 * read the same mapping and do nothing (the roof of generation), and how many int8 products they can sum (the roof of a
 * prompt). Both roofs drift with the neighbours on the host, so each sample has its own. */
#include "runtime/bench.h"

#include <string.h>
#include <time.h>

#include "runtime/roof.h"

double nb_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { ROOF_ROUNDS = 1000000, SHARE_UNIT = 4096, WARM_TOKENS = 32 }; /* rounds: some ten milliseconds */
#define SAMPLE_SECONDS 0.1

static uint64_t sums[NB_THREADS_MAX]; /* what the loops return, so that they are not removed */

struct reading {
    const struct nb_engine *e;
    struct nb_way way;
};

static void read_share(void *context, unsigned me, unsigned threads) {
    const struct reading *r = context;
    const struct nb_section *w = &r->e->model.weights;
    size_t units = w->size / SHARE_UNIT, from = units * me / threads, to = units * (me + 1) / threads;
    sums[me] = nb_read(r->e->hal.isa, w->data + from * SHARE_UNIT, (to - from) * SHARE_UNIT, r->way);
}

/* GB/s over as many passes as fill SAMPLE_SECONDS: a small model is done in a few milliseconds. */
static double read_speed(struct nb_engine *e, struct nb_way way) {
    struct reading r = {e, way};
    double start = nb_now(), seconds = 0, passes = 0;
    for (; seconds < SAMPLE_SECONDS; passes++) {
        nb_pool_run(e->pool, read_share, &r);
        seconds = nb_now() - start;
    }
    return passes * (double)(e->model.weights.size / SHARE_UNIT * SHARE_UNIT) / seconds * 1e-9;
}

/* The way that reads fastest here, each tried twice after one pass for page faults and cold caches. */
static struct nb_way best_way(struct nb_engine *e) {
    struct nb_way best = nb_ways[0];
    double fastest = 0;
    (void)read_speed(e, best);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < NB_WAYS; i++) {
            double speed = read_speed(e, nb_ways[i]);
            if (speed <= fastest) continue;
            fastest = speed;
            best = nb_ways[i];
        }
    return best;
}

static void roof_share(void *context, unsigned me, unsigned threads) {
    const struct nb_engine *e = context;
    (void)threads;
    sums[me] = nb_roof(e->hal.isa, ROOF_ROUNDS);
}

/* Gop/s of all threads together, a multiply-add counted as two. */
static double roof_speed(struct nb_engine *e) {
    double start = nb_now(), done = 0;
    nb_pool_run(e->pool, roof_share, e);
    double seconds = nb_now() - start;
    for (unsigned t = 0; t < nb_pool_threads(e->pool); t++) done += (double)sums[t];
    return 2e-9 * done / seconds;
}

static void add_list(FILE *to, const char *name, const double *values, uint32_t n, int digits) {
    fprintf(to, "\"%s\":[", name);
    for (uint32_t i = 0; i < n; i++) fprintf(to, "%s%.*f", i ? "," : "", digits, values[i]);
    fprintf(to, "]");
}

static void add_way(FILE *to, struct nb_way way) {
    fprintf(to, "\"read_ahead\":%u,\"read_once\":%s,", way.ahead, way.once ? "true" : "false");
}

void nb_bandwidth(struct nb_engine *e, uint32_t reps, FILE *to) {
    static double speeds[NB_REPS_MAX];
    struct nb_way way = best_way(e);
    double best = 0;
    uint64_t all = 0;
    for (uint32_t i = 0; i < reps; i++) {
        speeds[i] = read_speed(e, way);
        if (speeds[i] > best) best = speeds[i];
    }
    fprintf(to, "{\"threads\":%u,\"isa\":\"%s\",\"bytes\":%zu,", nb_pool_threads(e->pool), nb_isa(e), e->model.weights.size);
    add_way(to, way);
    add_list(to, "read_gb_s", speeds, reps, 2);
    for (unsigned t = 0; t < nb_pool_threads(e->pool); t++) all ^= sums[t];
    fprintf(to, ",\"read_best_gb_s\":%.2f,\"xor\":\"%016llx\"}\n", best, (unsigned long long)all);
}

/* Bytes of keys and values that a token at `position` reads. */
static double position_bytes(const struct nb_engine *e, double position) {
    const struct nb_spec *s = &e->model.spec;
    double each = 2.0 * s->kv_heads * (e->graph.kv->type == NB_KV_I8 ? s->head_dim + 4.0 : 2.0 * s->head_dim), sum = 0;
    for (uint32_t i = 0; i < s->layers; i++) {
        double window = e->model.layers[i].window;
        sum += window > 0 && window < position ? window : position;
    }
    return sum * each;
}

/* Peak and present memory in KiB as the kernel counts it; what it does not say is left out. */
static void add_memory(FILE *to) {
    static const char *const names[][2] = {{"VmHWM:", "peak_kib"}, {"RssAnon:", "anon_kib"}, {"RssFile:", "file_kib"}};
    FILE *f = fopen("/proc/self/status", "re");
    char line[128];
    unsigned long long kib;
    const char *comma = "";
    fprintf(to, "\"memory\":{");
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; i < 3; i++) {
            size_t n = strlen(names[i][0]);
            if (strncmp(line, names[i][0], n) || sscanf(line + n, "%llu", &kib) != 1) continue;
            fprintf(to, "%s\"%s\":%llu", comma, names[i][1], kib);
            comma = ",";
        }
    if (f) fclose(f);
    fprintf(to, "}");
}

/* One workload's samples. */
struct timing {
    double seconds[NB_REPS_MAX], limit[NB_REPS_MAX];
};
static struct timing prefill_runs, decode_runs, deep_runs;

/* n tokens as one prompt from an empty cache. */
static enum nb_status prompt(struct nb_engine *e, uint32_t n, double *seconds, struct nb_error *err) {
    nb_reset(e);
    double start = nb_now();
    enum nb_status s = nb_feed(e, e->ids, n, err);
    *seconds = nb_now() - start;
    return s;
}

/* n tokens one by one; the cache has `depth` positions before the first of them. */
static enum nb_status steps(struct nb_engine *e, uint32_t n, uint32_t depth, double *seconds, struct nb_error *err) {
    enum nb_status s = NB_OK;
    nb_reset(e);
    e->graph.position = depth; /* filled once before; what follows is written again */
    double start = nb_now();
    for (uint32_t i = 0; i < n && !s; i++) s = nb_feed(e, e->ids + i, 1, err);
    *seconds = nb_now() - start;
    return s;
}

static void fill_ids(struct nb_engine *e, uint32_t n) { /* room for a context's tokens; all over the vocabulary */
    for (uint32_t i = 0; i < n; i++) e->ids[i] = (int32_t)((i * 2654435761u >> 7) % e->tokens);
}

/* Untimed: code and tables come into the caches, the frequency rises, and the depth is filled. */
static enum nb_status warm_up(struct nb_engine *e, const struct nb_bench_plan *plan, struct nb_error *err) {
    double ignored;
    const uint32_t few = plan->prefill < WARM_TOKENS ? plan->prefill : WARM_TOKENS;
    enum nb_status s = few ? prompt(e, few, &ignored, err) : NB_OK;
    if (!s && plan->decode) s = steps(e, 1, 0, &ignored, err);
    if (!s && plan->decode && plan->depth) s = prompt(e, plan->depth, &ignored, err);
    return s;
}

static enum nb_status one_round(struct nb_engine *e, const struct nb_bench_plan *plan, struct nb_way way, uint32_t i,
                                struct nb_error *err) {
    enum nb_status s = NB_OK;
    if (plan->prefill) {
        double before = roof_speed(e);
        s = prompt(e, plan->prefill, &prefill_runs.seconds[i], err);
        prefill_runs.limit[i] = (before + roof_speed(e)) / 2;
    }
    if (s || !plan->decode) return s;
    double before = read_speed(e, way), after;
    s = steps(e, plan->decode, 0, &decode_runs.seconds[i], err);
    after = read_speed(e, way);
    decode_runs.limit[i] = (before + after) / 2;
    if (s || !plan->depth) return s;
    s = steps(e, plan->decode, plan->depth, &deep_runs.seconds[i], err);
    deep_runs.limit[i] = (after + read_speed(e, way)) / 2;
    return s;
}

static void add_steps(FILE *to, const struct nb_engine *e, const struct nb_bench_plan *plan, const char *name, uint32_t depth,
                      const struct timing *t) {
    double bytes = (double)nb_graph_token_bytes(&e->graph) + position_bytes(e, depth + (plan->decode + 1) / 2.0);
    fprintf(to, ",\"%s\":{\"tokens\":%u,\"depth\":%u,\"bytes\":%.0f,", name, plan->decode, depth, bytes);
    add_list(to, "seconds", t->seconds, plan->reps, 6);
    fprintf(to, ",");
    add_list(to, "read_gb_s", t->limit, plan->reps, 2);
    fprintf(to, "}");
}

static enum nb_status check_plan(const struct nb_engine *e, const struct nb_bench_plan *plan, struct nb_error *err) {
    const uint32_t context = e->graph.context;
    if (plan->prefill <= context && plan->depth < context && plan->decode <= context - plan->depth) return NB_OK;
    return nb_fail(err, NB_USAGE, "E_USAGE", "%u prompt tokens, %u single tokens at depth %u: the context has %u positions",
                   plan->prefill, plan->decode, plan->depth, context);
}

enum nb_status nb_bench(struct nb_engine *e, const struct nb_bench_plan *plan, FILE *to, struct nb_error *err) {
    enum nb_status s = check_plan(e, plan, err);
    if (s) return s;
    fill_ids(e, e->graph.context);
    struct nb_way way = best_way(e);
    s = warm_up(e, plan, err);
    for (uint32_t i = 0; i < plan->reps && !s; i++) s = one_round(e, plan, way, i, err);
    if (s) return s;
    fprintf(to, "{\"threads\":%u,\"isa\":\"%s\",\"context\":%u,\"chunk\":%u,\"kv\":\"%s\",\"token_bytes\":%zu,",
            nb_pool_threads(e->pool), nb_isa(e), e->graph.context, e->graph.chunk, e->graph.kv->type == NB_KV_I8 ? "i8" : "f16",
            nb_graph_token_bytes(&e->graph));
    add_way(to, way);
    fprintf(to, "\"clock_ghz\":%.2f,", nb_clock());
    add_memory(to);
    if (plan->prefill) {
        fprintf(to, ",\"prefill\":{\"tokens\":%u,\"macs\":%llu,", plan->prefill,
                (unsigned long long)nb_graph_token_macs(&e->graph));
        add_list(to, "seconds", prefill_runs.seconds, plan->reps, 6);
        fprintf(to, ",");
        add_list(to, "peak_gop_s", prefill_runs.limit, plan->reps, 1);
        fprintf(to, "}");
    }
    if (plan->decode) add_steps(to, e, plan, "decode", 0, &decode_runs);
    if (plan->decode && plan->depth) add_steps(to, e, plan, "deep", plan->depth, &deep_runs);
    fprintf(to, "}\n");
    return NB_OK;
}

enum nb_status nb_bench_start(struct nb_engine *e, const struct nb_bench_plan *plan, double started, FILE *to,
                              struct nb_error *err) {
    const struct nb_generation greedy = {.size = sizeof greedy, .max_tokens = plan->decode, .top_p = 1, .repeat = 1};
    struct nb_piece piece = {0};
    double ready = nb_now() - started, first = 0;
    enum nb_status s = check_plan(e, plan, err);
    if (s) return s;
    fill_ids(e, plan->prefill);
    s = nb_feed(e, e->ids, plan->prefill, err);
    if (!s && plan->decode) s = nb_begin(e, &greedy, err);
    while (!s && plan->decode && piece.finish == NB_GOING) {
        s = nb_next(e, &piece, err);
        if (first <= 0) first = nb_now() - started;
    }
    if (s) return s;
    fprintf(to, "{\"threads\":%u,\"isa\":\"%s\",\"context\":%u,\"prompt\":%u,\"tokens\":%u,", nb_pool_threads(e->pool), nb_isa(e),
            e->graph.context, plan->prefill, e->generated);
    fprintf(to, "\"ready_s\":%.4f,\"first_s\":%.4f,\"end_s\":%.4f,", ready, first, nb_now() - started);
    add_memory(to);
    fprintf(to, "}\n");
    return NB_OK;
}
