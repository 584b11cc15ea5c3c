/* SPDX-License-Identifier: Apache-2.0
 * The pool: one word says which stage is open and in how many pieces; everything else follows from it. A thread takes pieces
 * (deal.c) until there are none, adds what it did to `done`, and whoever makes that complete opens the next stage. Nobody
 * waits for a thread that did nothing: one that the system runs late finds the word changed and goes on from there.
 *
 * A waiter first spins for some microseconds, then gives its time slice away, then sleeps on a futex: fast when every thread
 * has a core, and still moving when there are more threads than cores or another program runs. */
#define _GNU_SOURCE /* sched_setaffinity */
#include "runtime/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/cores.h"

enum { SPINS = 400, IDLE_SPINS = 4000, YIELDS = 50, STACK = 256 * 1024 };

/* The open stage: its number << 32 | how many pieces (0: the job is over). */
#define STAGE(word) ((uint32_t)((word) >> 32))
#define PIECES(word) ((uint32_t)(word))
#define QUIT UINT32_MAX /* for PIECES: workers end */

struct nb_pool {
    _Alignas(128) _Atomic uint64_t now;
    atomic_uint sleepers;           /* threads that wait for `now` in the kernel */
    _Alignas(128) atomic_uint done; /* pieces of the open stage */
    /* Written between jobs, read by who holds a piece */
    _Alignas(128) const struct nb_job *job;
    void *context;
    uint32_t first; /* number of the job's stage 0 */
    uint32_t swept; /* jobs; each sweeps another lane */
    unsigned threads;
    int spins;
    struct worker {
        struct nb_pool *pool;
        unsigned index;
        pthread_t id;
    } worker[NB_THREADS_MAX];
    struct nb_cores cores;
    struct nb_deal deal;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* some ten nanoseconds; yield is nothing on cores with one hardware thread */
#elif defined(__riscv)
    __asm__ volatile(".4byte 0x0100000f"); /* pause, a hint that older cores run as a fence of nothing */
#endif
}

static void futex(struct nb_pool *pool, int operation, uint32_t value) {
    uint32_t *stage = (uint32_t *)&pool->now + 1; /* the upper half on little-endian machines, all that we build for */
    syscall(SYS_futex, stage, operation, value, NULL, NULL, 0);
}

/* Returns the word once it is another one than `seen`. */
static uint64_t wait_past(struct nb_pool *pool, uint64_t seen) {
    uint64_t now;
    const int spins = PIECES(seen) || pool->spins == 0 ? pool->spins : IDLE_SPINS; /* idle: between tokens */
    for (int i = 0; i < spins; i++) {
        if ((now = atomic_load_explicit(&pool->now, memory_order_acquire)) != seen) return now;
        relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if ((now = atomic_load_explicit(&pool->now, memory_order_acquire)) != seen) return now;
        sched_yield();
    }
    atomic_fetch_add(&pool->sleepers, 1);
    while ((now = atomic_load(&pool->now)) == seen) futex(pool, FUTEX_WAIT_PRIVATE, STAGE(seen));
    atomic_fetch_sub(&pool->sleepers, 1);
    return now;
}

static uint64_t publish(struct nb_pool *pool, uint32_t stage, uint32_t pieces) {
    const uint64_t word = (uint64_t)stage << 32 | pieces;
    atomic_store(&pool->now, word); /* before the look at sleepers, both sequentially consistent: no wake-up is lost */
    if (atomic_load(&pool->sleepers)) futex(pool, FUTEX_WAKE_PRIVATE, NB_THREADS_MAX);
    return word;
}

/* The job is looked at only with a piece in hand: without one it may be gone. */
static void take_part(struct nb_pool *pool, unsigned me, uint64_t word) {
    const uint32_t stage = STAGE(word), pieces = PIECES(word);
    uint32_t mine = 0;
    for (int32_t piece; (piece = nb_deal_take(&pool->deal, me, stage, pieces)) >= 0; mine++)
        pool->job->work(pool->context, stage - pool->first, (uint32_t)piece, pieces, me);
    if (mine == 0 || atomic_fetch_add_explicit(&pool->done, mine, memory_order_acq_rel) + mine != pieces) return;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    publish(pool, stage + 1, pool->job->open(pool->context, stage + 1 - pool->first));
}

static const struct nb_core *core_of(const struct nb_cores *cores, unsigned thread) {
    return &cores->core[thread % cores->count];
}

/* Where cores differ, a worker keeps to those of the capacity that its share was made for, and is free among them. The
 * caller's own thread is left alone; it finds a fast core free. Where all are alike the scheduler knows better. */
static void stay_on_kind(const struct nb_cores *cores, unsigned thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned i = 0; i < cores->count; i++)
        if (cores->core[i].capacity == core_of(cores, thread)->capacity) CPU_SET(cores->core[i].cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set); /* refused: the shares are a guess, and stealing evens them out */
}

static void *work(void *argument) {
    struct worker *w = argument;
    struct nb_pool *pool = w->pool;
    if (!pool->cores.even) stay_on_kind(&pool->cores, w->index);
    for (uint64_t word = 0; PIECES(word = wait_past(pool, word)) != QUIT;)
        if (PIECES(word)) take_part(pool, w->index, word);
    return NULL;
}

void nb_pool_do(struct nb_pool *pool, const struct nb_job *job, void *context) {
    if (!pool) {
        for (uint32_t stage = 0; job->open(context, stage); stage++) job->work(context, stage, 0, 1, 0);
        return;
    }
    uint64_t word = atomic_load_explicit(&pool->now, memory_order_relaxed);
    const uint32_t pieces = job->open(context, 0);
    nb_deal_sweep(&pool->deal, pool->swept++ % pool->threads, STAGE(word));
    pool->job = job;
    pool->context = context;
    pool->first = STAGE(word) + 1;
    for (word = publish(pool, pool->first, pieces); PIECES(word); word = wait_past(pool, word)) take_part(pool, 0, word);
}

struct call {
    nb_pool_fn *fn;
    void *context;
    unsigned threads;
};

static uint32_t open_call(void *context, uint32_t stage) {
    const struct call *call = context;
    return stage == 0 ? call->threads : 0;
}

static void work_call(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned thread) {
    const struct call *call = context;
    (void)stage;
    (void)thread;
    call->fn(call->context, part, parts);
}

void nb_pool_run(struct nb_pool *pool, nb_pool_fn *fn, void *context) {
    static const struct nb_job job = {open_call, work_call};
    struct call call = {fn, context, nb_pool_threads(pool)};
    nb_pool_do(pool, &job, &call);
}

unsigned nb_pool_together(const struct nb_pool *pool) {
    return pool ? pool->threads < pool->cores.count ? pool->threads : pool->cores.count : 1;
}

unsigned nb_pool_threads(const struct nb_pool *pool) { return pool ? pool->threads : 1; }

/* Workers leave signals to the caller's thread, but for those that a fault of their own raises: blocked, these would
 * kill the process before the handler could say why. `threads` counts only what was started. */
static int start_workers(struct nb_pool *pool, unsigned threads) {
    sigset_t all, before;
    sigfillset(&all);
    for (int i = 0; i < 4; i++) sigdelset(&all, (const int[]){SIGBUS, SIGSEGV, SIGFPE, SIGILL}[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    int failed = 0;
    for (unsigned i = 1; i < threads && !failed; i++) {
        pool->worker[i] = (struct worker){.pool = pool, .index = i};
        failed = pthread_create(&pool->worker[i].id, &attr, work, &pool->worker[i]);
        pool->threads += !failed;
    }
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void read_cores(struct nb_cores *cores) {
    uint32_t cpus[NB_CORES_MAX];
    nb_cores_read(cores, "", cpus, nb_cores_allowed(cpus));
}

enum nb_status nb_pool_open(struct nb_pool **out, unsigned threads, struct nb_error *err) {
    *out = NULL;
    if (threads == 0 || threads > NB_THREADS_MAX)
        return nb_fail(err, NB_USAGE, "E_THREADS", "%u threads, allowed are 1 to %d", threads, NB_THREADS_MAX);
    if (threads == 1) return NB_OK;
    struct nb_pool *pool = aligned_alloc(128, (sizeof *pool + 127) & ~(size_t)127);
    if (!pool) return nb_fail(err, NB_RESOURCE, "E_THREADS", "no memory for %u threads", threads);
    memset(pool, 0, sizeof *pool);
    uint32_t capacity[NB_THREADS_MAX];
    read_cores(&pool->cores);
    for (unsigned i = 0; i < threads; i++) capacity[i] = core_of(&pool->cores, i)->capacity;
    nb_deal_open(&pool->deal, threads, capacity);
    pool->threads = 1;
    pool->spins = threads > pool->cores.count ? 0 : SPINS; /* who spins may keep the one that has work from its core */
    int failed = start_workers(pool, threads);
    if (failed) {
        unsigned started = pool->threads;
        nb_pool_close(pool);
        return nb_fail(err, NB_RESOURCE, "E_THREADS", "only %u of %u threads could be started: %s", started, threads,
                       strerror(failed));
    }
    *out = pool;
    return NB_OK;
}

void nb_pool_close(struct nb_pool *pool) {
    if (!pool) return;
    publish(pool, STAGE(atomic_load_explicit(&pool->now, memory_order_relaxed)) + 1, QUIT);
    for (unsigned i = 1; i < pool->threads; i++) pthread_join(pool->worker[i].id, NULL);
    free(pool);
}

unsigned nb_pool_default_threads(void) {
    struct nb_cores cores;
    read_cores(&cores);
    return nb_cores_threads(&cores);
}
