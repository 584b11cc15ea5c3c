/* SPDX-License-Identifier: Apache-2.0
 * Between forward.c (one token) and prefill.c (a chunk of tokens). */
#ifndef NB_FORWARD_H
#define NB_FORWARD_H

#include "runtime/graph.h"

/* n > 1 tokens at g->position, n <= g->chunk; NB_WANT_LAST fills g->logits. Leaves the residual stream in g->x. */
void nb_prefill(struct nb_graph *g, const int32_t *ids, uint32_t n, enum nb_want want);
/* Logits of all n tokens that nb_prefill left in g->x, NB_TILE at a time. */
void nb_head_all(struct nb_graph *g, uint32_t n, uint32_t first, nb_logits_fn *sink, void *context);

/* x += proj, or x += rmsnorm(proj) with a post norm. */
void nb_residual(const struct nb_graph *g, float *x, const float *proj, const float *post, float *scratch);
/* Thread `me`'s share of the logits of one residual stream x. */
void nb_head_last(struct nb_graph *g, const float *x, unsigned me, unsigned threads);

/* Thread 0 looks at the caller's flag before a barrier; after it all threads see the same answer. */
static inline void nb_poll_stop(struct nb_graph *g, unsigned me) {
    if (me == 0 && g->stop && *g->stop) g->stopped = 1;
}

#endif
