/* SPDX-License-Identifier: Apache-2.0
 * Timing loops; results as one line of JSON. */
#ifndef NB_BENCH_H
#define NB_BENCH_H

#include <stdio.h>

#include "runtime/engine.h"

enum { NB_REPS_MAX = 1000 };

struct nb_bench_plan {
    uint32_t prefill, decode; /* tokens of the prompt, and single steps; 0: left out */
    uint32_t depth;           /* positions in the cache before a second run of single steps; 0: no such run */
    uint32_t reps;            /* at most NB_REPS_MAX */
};

double nb_now(void); /* seconds, monotonic */

/* Prompt and single steps in turn, `reps` times, each beside the limit that it is measured against: the int8 peak
 * before and after every prompt, the reading speed before and after every run of single steps. */
enum nb_status nb_bench(struct nb_engine *e, const struct nb_bench_plan *plan, FILE *to, struct nb_error *err);
/* What a short run costs: a prompt of plan->prefill tokens, plan->decode tokens generated, the memory it took.
 * `started` is when the program started (nb_now). */
enum nb_status nb_bench_start(struct nb_engine *e, const struct nb_bench_plan *plan, double started, FILE *to,
                              struct nb_error *err);
/* Every thread reads its share of the weights from one end to the other. */
void nb_bandwidth(struct nb_engine *e, uint32_t reps, FILE *to);

#endif
