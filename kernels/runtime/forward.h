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
/* Into how many pieces to cut that many items, at most `most` each as long as every thread has some. */
uint32_t nb_pieces(const struct nb_graph *g, uint32_t items, uint32_t most);

/* The last stage of a job: opened with one token's residual stream x, then worked on; leaves its logits in g->logits. */
uint32_t nb_head_open(struct nb_graph *g, const float *x);
void nb_head_work(struct nb_graph *g, uint32_t part, uint32_t parts);

/* Before each stage: did the caller raise its flag? */
static inline int nb_stopped(struct nb_graph *g) {
    if (g->stop && *g->stop) g->stopped = 1;
    return g->stopped;
}

#endif
