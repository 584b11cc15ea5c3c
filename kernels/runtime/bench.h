/* SPDX-License-Identifier: Apache-2.0
 * Timing loops; results as one line of JSON. */
#ifndef NB_BENCH_H
#define NB_BENCH_H

#include <stdio.h>

#include "runtime/engine.h"

double nb_now(void); /* seconds, monotonic */

/* Prompt of `prefill` tokens and `decode` single steps, `reps` times each (0: left out), beside the reading speed. */
enum nb_status nb_bench(struct nb_engine *e, uint32_t prefill, uint32_t decode, uint32_t reps, FILE *to, struct nb_error *err);
/* Every thread reads its share of the weights from one end to the other. */
void nb_bandwidth(struct nb_engine *e, uint32_t reps, FILE *to);

#endif
