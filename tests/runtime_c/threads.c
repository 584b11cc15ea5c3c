/* SPDX-License-Identifier: Apache-2.0
 * The pool, the dealing of pieces and the reading of cores, without a model:
 *   threads pool N    jobs of many stages on N threads: every piece once, nothing before its time, a held piece holds nobody
 *   threads deal      who gets which piece
 *   threads time N    microseconds for a job with nothing to do, and what a stage costs beside its work
 *   threads cores ROOT CPU...   what nb_cores_read makes of a folder */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cores.h"
#include "runtime/pool.h"

static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { STAGES = 60, MOST = 3000 };
static const uint32_t sizes[] = {1, 2, 3, 7, 64, 1, 1000, MOST, 5, 255, 256, 257};

struct work {
    unsigned threads;
    uint32_t round;
    int opening;         /* plain: the pool alone keeps threads apart */
    uint32_t done[MOST]; /* plain, each written by who holds the piece */
    uint32_t in_use[NB_THREADS_MAX];
};

static uint32_t size_of(const struct work *w, uint32_t stage) {
    return sizes[(stage + w->round) % (sizeof sizes / sizeof *sizes)];
}

static uint32_t open_counted(void *context, uint32_t stage) {
    struct work *w = context;
    for (uint32_t i = 0; stage > 0 && i < (w->threads > 1 ? size_of(w, stage - 1) : 1); i++) {
        if (w->done[i] != 1) fail("stage %u: piece %u was computed %u times", stage - 1, i, w->done[i]);
        w->done[i] = 0;
    }
    w->opening++;
    return stage < STAGES ? size_of(w, stage) : 0;
}

static void work_counted(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned thread) {
    struct work *w = context;
    if (parts != (w->threads > 1 ? size_of(w, stage) : 1)) fail("stage %u has %u parts", stage, parts);
    if (part >= parts || thread >= w->threads) fail("part %u of %u, thread %u", part, parts, thread);
    if (w->in_use[thread]++) fail("two of thread %u", thread);
    w->done[part]++;
    if ((part * 2654435761u + stage) % 97 == 0) usleep(part % 50); /* some are put aside */
    w->in_use[thread]--;
}

static uint32_t open_once(void *context, uint32_t stage) {
    (void)context;
    return stage == 0 ? 100 : 0;
}

static atomic_uint finished;

/* Whoever gets the first piece keeps it until all others are done: the rest of its run has to be taken from it. */
static void work_held(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned thread) {
    (void)context;
    (void)stage;
    (void)thread;
    while (part == 0 && atomic_load(&finished) != parts - 1) usleep(10);
    atomic_fetch_add(&finished, 1);
}

static void mark(void *context, unsigned part, unsigned parts) {
    unsigned *marks = context;
    marks[part] += parts;
}

static void test_pool(unsigned threads) {
    static const struct nb_job counted = {open_counted, work_counted}, held = {open_once, work_held};
    static struct work w;
    struct nb_pool *pool;
    struct nb_error err;
    unsigned marks[NB_THREADS_MAX] = {0};
    w.threads = threads;
    if (nb_pool_open(&pool, threads, &err)) fail("%s", err.text);
    if (nb_pool_threads(pool) != threads) fail("%u threads", nb_pool_threads(pool));
    for (w.round = 0; w.round < 12; w.round++) nb_pool_do(pool, &counted, &w);
    if (w.opening != 12 * (STAGES + 1)) fail("%d stages were opened", w.opening);
    for (unsigned i = 0; threads > 1 && i < 20; i++) {
        atomic_store(&finished, 0);
        nb_pool_do(pool, &held, NULL);
        if (atomic_load(&finished) != 100) fail("%u of 100 pieces", atomic_load(&finished));
        usleep(i * 100); /* now and then the workers are asleep */
    }
    nb_pool_run(pool, mark, marks);
    for (unsigned i = 0; i < NB_THREADS_MAX; i++)
        if (marks[i] != (i < threads ? threads : 0)) fail("part %u: %u", i, marks[i]);
    nb_pool_close(pool);
}

static void expect(struct nb_deal *deal, uint32_t thread, uint32_t stage, uint32_t pieces, const int *want) {
    for (int i = 0; i == 0 || want[i - 1] >= 0; i++) {
        const int got = nb_deal_take(deal, thread, stage, pieces);
        if (got != want[i]) fail("stage %u, thread %u, take %d: piece %d, not %d", stage, thread, i, got, want[i]);
    }
}

static void test_deal(void) {
    static struct nb_deal deal;
    nb_deal_open(&deal, 2, (const uint32_t[]){3, 1}); /* runs of 8 pieces: 0-5 and 6-7 */
    if (nb_deal_take(&deal, 0, 1, 8) != 0) fail("not its own front");
    expect(&deal, 1, 1, 8, (const int[]){6, 7, 5, 4, 3, 2, 1, -1});
    expect(&deal, 0, 1, 8, (const int[]){-1});
    expect(&deal, 1, 2, 2, (const int[]){1, 0, -1}); /* thread 0 has not come yet: its run is worked out */
    expect(&deal, 0, 1, 8, (const int[]){-1});       /* and is late */
    expect(&deal, 0, 3, 1, (const int[]){0, -1});
    expect(&deal, 1, 0x7ffffff0, 4, (const int[]){3, 2, 1, 0, -1}); /* numbers wrap */
    nb_deal_sweep(&deal, 1, 0x7ffffff0);
    expect(&deal, 1, 0xfffffff0, 4, (const int[]){3, 2, 1, 0, -1});
    expect(&deal, 0, 2, 4, (const int[]){0, 1, 2, 3, -1});
    expect(&deal, 1, 0xfffffff0, 4, (const int[]){-1});
}

static uint32_t open_many(void *context, uint32_t stage) {
    const unsigned *setting = context;
    return stage < 200 ? setting[0] : 0;
}

static void work_some(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned thread) {
    const unsigned *setting = context;
    const double end = now() + setting[1] * 1e-6;
    (void)stage;
    (void)part;
    (void)parts;
    (void)thread;
    while (setting[1] && now() < end) continue;
}

static void call(void *context, unsigned part, unsigned parts) { work_some(context, 0, part, parts, 0); }

/* The best of some rounds, in microseconds: of a job of one stage with `busy` microseconds of work for each thread, or of
 * the 200 stages of one job. */
static double best_of(struct nb_pool *pool, unsigned busy, int stages) {
    static const struct nb_job many = {open_many, work_some};
    unsigned setting[2] = {nb_pool_threads(pool), busy};
    double best = 1;
    for (int i = 0; i < 20; i++) {
        const double start = now();
        for (int j = 0; !stages && j < 200; j++) nb_pool_run(pool, call, setting);
        if (stages) nb_pool_do(pool, &many, setting);
        const double each = (now() - start) / 200;
        best = each < best ? each : best;
    }
    return best * 1e6;
}

static void measure(unsigned threads) {
    struct nb_pool *pool;
    struct nb_error err;
    if (nb_pool_open(&pool, threads, &err)) fail("%s", err.text);
    const double nothing = best_of(pool, 0, 0), job = best_of(pool, 20, 0), stage = best_of(pool, 20, 1);
    printf("%u threads: a job of nothing %.2f us; beside 20 us of work a job costs %.2f us, a stage %.2f us\n", threads, nothing,
           job - 20, stage - 20);
    nb_pool_close(pool);
}

static void show_cores(const char *root, char **words, int count) {
    uint32_t cpus[NB_CORES_MAX];
    struct nb_cores cores;
    for (int i = 0; i < count; i++) cpus[i] = (uint32_t)strtoul(words[i], NULL, 10);
    nb_cores_read(&cores, root, cpus, (uint32_t)count);
    printf("fast %u even %u:", cores.fast, cores.even);
    for (uint32_t i = 0; i < cores.count; i++) printf(" %u=%u", cores.core[i].cpu, cores.core[i].capacity);
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const unsigned n = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    if (!strcmp(argv[1], "pool")) test_pool(n);
    else if (!strcmp(argv[1], "deal")) test_deal();
    else if (!strcmp(argv[1], "time")) measure(n);
    else if (!strcmp(argv[1], "cores") && argc > 2) show_cores(argv[2], argv + 3, argc - 3);
    else return 2;
    return 0;
}
