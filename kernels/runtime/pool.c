/* SPDX-License-Identifier: Apache-2.0
 * The pool. A waiter first spins for some microseconds, then gives its time slice away, then sleeps on a futex: fast
 * when every thread has a core, and still moving when there are more threads than cores or another program runs. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "runtime/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/cgroup.h"

enum { SPINS = 400, DISPATCH_SPINS = 4000, YIELDS = 50, STACK = 256 * 1024 };

/* A number that grows by one each time a wait ends, and how many sleep on it. Each on its own cache line. */
struct event {
    _Alignas(128) atomic_uint count;
    atomic_uint sleepers;
};

struct nb_pool {
    struct event dispatch, barrier;
    _Alignas(128) atomic_uint arrived;
    nb_pool_fn *fn; /* NULL: the worker ends */
    void *context;
    unsigned threads;
    struct worker {
        struct nb_pool *pool;
        unsigned index;
        pthread_t id;
    } worker[NB_THREADS_MAX];
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wait_past(struct event *e, unsigned seen, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&e->count, memory_order_acquire) != seen) return;
        relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(&e->count, memory_order_acquire) != seen) return;
        sched_yield();
    }
    atomic_fetch_add(&e->sleepers, 1);
    while (atomic_load(&e->count) == seen) syscall(SYS_futex, &e->count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&e->sleepers, 1);
}

static void advance(struct event *e) {
    atomic_fetch_add(&e->count, 1); /* before the look at sleepers, both sequentially consistent: no wake-up is lost */
    if (atomic_load(&e->sleepers)) syscall(SYS_futex, &e->count, FUTEX_WAKE_PRIVATE, NB_THREADS_MAX, NULL, NULL, 0);
}

void nb_pool_barrier(struct nb_pool *pool) {
    if (!pool) return;
    unsigned seen = atomic_load_explicit(&pool->barrier.count, memory_order_acquire);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 == pool->threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        advance(&pool->barrier);
    } else {
        wait_past(&pool->barrier, seen, SPINS);
    }
}

static void *work(void *argument) {
    struct worker *w = argument;
    struct nb_pool *pool = w->pool;
    for (unsigned seen = 0;; seen++) {
        wait_past(&pool->dispatch, seen, DISPATCH_SPINS);
        if (!pool->fn) return NULL;
        pool->fn(pool->context, w->index, pool->threads);
        nb_pool_barrier(pool);
    }
}

void nb_pool_run(struct nb_pool *pool, nb_pool_fn *fn, void *context) {
    if (!pool) {
        fn(context, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->context = context;
    advance(&pool->dispatch);
    fn(context, 0, pool->threads);
    nb_pool_barrier(pool);
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

enum nb_status nb_pool_open(struct nb_pool **out, unsigned threads, struct nb_error *err) {
    *out = NULL;
    if (threads == 0 || threads > NB_THREADS_MAX)
        return nb_fail(err, NB_USAGE, "E_THREADS", "%u threads, allowed are 1 to %d", threads, NB_THREADS_MAX);
    if (threads == 1) return NB_OK;
    struct nb_pool *pool = aligned_alloc(128, (sizeof *pool + 127) & ~(size_t)127);
    if (!pool) return nb_fail(err, NB_RESOURCE, "E_THREADS", "no memory for %u threads", threads);
    memset(pool, 0, sizeof *pool);
    pool->threads = 1;
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
    pool->fn = NULL;
    advance(&pool->dispatch);
    for (unsigned i = 1; i < pool->threads; i++) pthread_join(pool->worker[i].id, NULL);
    free(pool);
}

/* Lowers *context (unsigned) to the whole processors that the quota at one cgroup folder allows. */
static void quota_at(const char *folder, int version, void *context) {
    unsigned *limit = context;
    char line[128];
    long long quota = -1, period = 100000;
    if (version == 2) {
        if (!nb_read_line(folder, "cpu.max", line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2) return;
    } else {
        if (!nb_read_line(folder, "cpu.cfs_quota_us", line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return;
        if (!nb_read_line(folder, "cpu.cfs_period_us", line, sizeof line) || sscanf(line, "%lld", &period) != 1) return;
    }
    if (quota <= 0 || period <= 0 || quota / period >= *limit) return;
    *limit = quota / period < 1 ? 1 : (unsigned)(quota / period);
}

unsigned nb_pool_default_threads(void) {
    cpu_set_t set;
    unsigned count = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
    if (count < 1) count = 1;
    if (count > NB_THREADS_MAX) count = NB_THREADS_MAX;
    nb_cgroup_walk("cpu", quota_at, &count);
    return count;
}
