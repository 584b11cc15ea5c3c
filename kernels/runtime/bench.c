/* SPDX-License-Identifier: Apache-2.0
 * The same calls that generation makes, timed; and how fast the same threads can read the same bytes and do nothing,
 * which is the roof for generation. */
#include "runtime/bench.h"

#include <string.h>
#include <time.h>

#include "runtime/roof.h"

double nb_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { ROOF_ROUNDS = 2000000 }; /* some ten milliseconds */
#define SAMPLE_SECONDS 0.1

typedef uint64_t wide __attribute__((vector_size(64), aligned(64)));

struct reading {
    struct nb_engine *e;
    wide sum[NB_THREADS_MAX];
};

static void read_share(void *context, unsigned me, unsigned threads) {
    struct reading *r = context;
    const struct nb_section *w = &r->e->model.weights;
    size_t lines = w->size / sizeof(wide), from = lines * me / threads, to = lines * (me + 1) / threads;
    const wide *p = (const wide *)(const void *)w->data;
    wide a = {0}, b = {0};
    for (size_t i = from; i + 2 <= to; i += 2) {
        __builtin_prefetch(p + i + 64);
        __builtin_prefetch(p + i + 65);
        a += p[i];
        b += p[i + 1];
    }
    r->sum[me] = a + b;
}

/* GB/s over as many passes as fill SAMPLE_SECONDS: a small model is done in a few milliseconds. */
static double read_speed(struct nb_engine *e) {
    static struct reading r;
    r.e = e;
    double start = nb_now(), seconds = 0, passes = 0;
    for (; seconds < SAMPLE_SECONDS; passes++) {
        nb_pool_run(e->pool, read_share, &r);
        seconds = nb_now() - start;
    }
    wide all = {0};
    for (unsigned i = 0; i < nb_pool_threads(e->pool); i++) all += r.sum[i];
    volatile uint64_t used = all[0]; /* without a use the loop would be removed */
    (void)used;
    return passes * (double)e->model.weights.size / seconds * 1e-9;
}

static double add_reading(struct nb_engine *e, uint32_t reps, FILE *to) {
    double best = 0;
    (void)read_speed(e); /* page faults, cold caches */
    fprintf(to, "\"read_gb_s\":[");
    for (uint32_t i = 0; i < reps; i++) {
        double speed = read_speed(e);
        if (speed > best) best = speed;
        fprintf(to, "%s%.2f", i ? "," : "", speed);
    }
    fprintf(to, "]");
    return best;
}

static void roof_share(void *context, unsigned me, unsigned threads) {
    struct reading *r = context;
    (void)threads;
    r->sum[me][0] = nb_roof(r->e->hal.isa, ROOF_ROUNDS);
}

/* Gop/s of all threads together, a multiply-add counted as two. */
static void add_roof(struct nb_engine *e, uint32_t reps, FILE *to) {
    static struct reading r;
    r.e = e;
    nb_pool_run(e->pool, roof_share, &r);
    fprintf(to, "\"peak_gop_s\":[");
    for (uint32_t i = 0; i < reps; i++) {
        double start = nb_now(), done = 0;
        nb_pool_run(e->pool, roof_share, &r);
        double seconds = nb_now() - start;
        for (unsigned t = 0; t < nb_pool_threads(e->pool); t++) done += (double)r.sum[t][0];
        fprintf(to, "%s%.1f", i ? "," : "", 2e-9 * done / seconds);
    }
    fprintf(to, "]");
}

void nb_bandwidth(struct nb_engine *e, uint32_t reps, FILE *to) {
    fprintf(to, "{\"threads\":%u,\"bytes\":%zu,", nb_pool_threads(e->pool), e->model.weights.size);
    double best = add_reading(e, reps, to);
    fprintf(to, ",\"read_best_gb_s\":%.2f}\n", best);
}

/* Seconds for n tokens, as one prompt or one by one. */
static enum nb_status timed(struct nb_engine *e, const int32_t *ids, uint32_t n, int single, double *seconds,
                            struct nb_error *err) {
    enum nb_status s = NB_OK;
    nb_reset(e);
    if (single) s = nb_feed(e, ids, 1, err); /* so that the first step is one like the others */
    double start = nb_now();
    if (!single && !s) s = nb_feed(e, ids, n, err);
    for (uint32_t i = 0; single && i < n && !s; i++) s = nb_feed(e, ids + i, 1, err);
    *seconds = nb_now() - start;
    return s;
}

static enum nb_status rounds(struct nb_engine *e, const char *name, uint32_t n, int single, uint32_t reps, FILE *to,
                             struct nb_error *err) {
    double best = 0;
    int32_t *ids = e->ids; /* room for a context's tokens, and no text is encoded here */
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 2654435761u >> 7) % e->tokens); /* all over the vocabulary */
    fprintf(to, ",\"%s\":{\"tokens\":%u,\"seconds\":[", name, n);
    for (uint32_t i = 0; i < reps; i++) {
        double seconds;
        enum nb_status s = timed(e, ids, n, single, &seconds, err);
        if (s) return s;
        if (i == 0 || seconds < best) best = seconds;
        fprintf(to, "%s%.6f", i ? "," : "", seconds);
    }
    double speed = n / best;
    fprintf(to, "],\"tok_s\":%.2f", speed);
    if (single) fprintf(to, ",\"gb_s\":%.2f}", speed * (double)nb_graph_token_bytes(&e->graph) * 1e-9);
    else fprintf(to, ",\"gop_s\":%.1f}", speed * 2e-9 * (double)nb_graph_token_macs(&e->graph));
    return NB_OK;
}

enum nb_status nb_bench(struct nb_engine *e, uint32_t prefill, uint32_t decode, uint32_t reps, FILE *to, struct nb_error *err) {
    uint32_t context = e->graph.context;
    if (prefill > context || decode >= context)
        return nb_fail(err, NB_USAGE, "E_USAGE", "%u prompt and %u single tokens, the context has %u positions", prefill, decode,
                       context);
    fprintf(to, "{\"threads\":%u,\"isa\":\"%s\",\"context\":%u,\"chunk\":%u,\"token_bytes\":%zu,\"token_macs\":%llu,",
            nb_pool_threads(e->pool), nb_isa(e), context, e->graph.chunk, nb_graph_token_bytes(&e->graph),
            (unsigned long long)nb_graph_token_macs(&e->graph));
    (void)add_reading(e, reps, to);
    fprintf(to, ",");
    add_roof(e, reps, to);
    enum nb_status s = prefill ? rounds(e, "prefill", prefill, 0, reps, to, err) : NB_OK;
    if (!s && decode) s = rounds(e, "decode", decode, 1, reps, to, err);
    if (!s) fprintf(to, "}\n");
    return s;
}
