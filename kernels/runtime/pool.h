/* SPDX-License-Identifier: Apache-2.0
 * Worker threads that run one function together (SPMD) and meet at barriers. Thread 0 is the caller. */
#ifndef NB_POOL_H
#define NB_POOL_H

#include "runtime/error.h"

enum { NB_THREADS_MAX = 256 };

struct nb_pool;
typedef void nb_pool_fn(void *context, unsigned thread, unsigned threads);

/* Processors this process may use: its affinity mask, but not more than the cgroup's CPU quota. At least 1. */
unsigned nb_pool_default_threads(void);

/* threads 1 gives *pool == NULL, which all functions below take for "run serially". */
enum nb_status nb_pool_open(struct nb_pool **pool, unsigned threads, struct nb_error *err);
void nb_pool_close(struct nb_pool *pool);
unsigned nb_pool_threads(const struct nb_pool *pool);

/* Calls fn on every thread and returns when all have returned. */
void nb_pool_run(struct nb_pool *pool, nb_pool_fn *fn, void *context);
/* Inside fn: returns when every thread has come here; what they wrote before is then visible to all. */
void nb_pool_barrier(struct nb_pool *pool);

#endif
