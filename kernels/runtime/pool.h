/* SPDX-License-Identifier: Apache-2.0
 * Worker threads that do a job together, stage by stage. A stage is over when its pieces are done, whoever did them: a
 * thread that the system has put aside is not waited for unless it holds a piece. */
#ifndef NB_POOL_H
#define NB_POOL_H

#include "runtime/deal.h"
#include "runtime/error.h"

struct nb_pool;

/* `open` begins stage 0, 1, ... once everything before is done and visible; one thread calls it, while no piece is being
 * computed, so it is the place for what is short and serial. It returns into how many pieces to cut the stage, at most
 * NB_PIECES_MAX; 0 ends the job. `work` computes piece `part` of `parts` (of the returned number, or the only one of 1).
 * thread < the pool's threads says whose scratch memory may be used. */
struct nb_job {
    uint32_t (*open)(void *context, uint32_t stage);
    void (*work)(void *context, uint32_t stage, uint32_t part, uint32_t parts, unsigned thread);
};

/* One thread for each fast core that this process may use, but not more than the cgroup's CPU quota. At least 1. */
unsigned nb_pool_default_threads(void);

/* threads 1 gives *pool == NULL, which all functions below take for "run serially". */
enum nb_status nb_pool_open(struct nb_pool **pool, unsigned threads, struct nb_error *err);
void nb_pool_close(struct nb_pool *pool);
unsigned nb_pool_threads(const struct nb_pool *pool);
/* How many of them can run at the same time: not more than there are processors. */
unsigned nb_pool_together(const struct nb_pool *pool);

/* Returns when the job has ended. Not from inside a job. */
void nb_pool_do(struct nb_pool *pool, const struct nb_job *job, void *context);

typedef void nb_pool_fn(void *context, unsigned part, unsigned parts);
/* A job of one stage with a piece for every thread. */
void nb_pool_run(struct nb_pool *pool, nb_pool_fn *fn, void *context);

#endif
