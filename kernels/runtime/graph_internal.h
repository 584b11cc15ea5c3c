/* SPDX-License-Identifier: Apache-2.0
 * Shared by the forward pass's files: one thread's scratch, cutting work into shares, attention. */
#ifndef NB_GRAPH_INTERNAL_H
#define NB_GRAPH_INTERNAL_H

#include "runtime/graph.h"

enum {
    NB_FFN_ROWS = 64,    /* rows of gate and up that one item of prefill computes */
    NB_FFN_TOKENS = 128, /* and for how many tokens */
    NB_QUERIES = 48,     /* queries (tokens x heads of a group) in a run of attention in prefill, if one token has no more */
};

struct nb_scratch {
    float *h;                              /* (max(ld_hidden, ld_q)) */
    float *q, *k;                          /* (group, head_dim), (head_dim) */
    float *scores;                         /* (queries, NB_RANGE); queries: max(group, NB_QUERIES) */
    float *max, *sum;                      /* (queries) */
    float *part_max, *part_sum, *part_out; /* (queries, ranges) twice, (ranges, queries * head_dim) */
    uint32_t *from, *to;                   /* (queries): positions that each token of a run sees in one range */
    float *gate, *up;                      /* (NB_FFN_TOKENS, NB_FFN_ROWS) */
};

/* Part `part` of `parts` is the items [*from, *to) of n. */
static inline void nb_share(uint64_t n, uint32_t part, uint32_t parts, uint32_t *from, uint32_t *to) {
    *from = (uint32_t)(n * part / parts);
    *to = (uint32_t)(n * (part + 1) / parts);
}

/* Norms q's and k's heads (if the record says so), rotates them. heads: how many heads q holds. */
void nb_qk_prepare(const struct nb_graph *g, const struct nb_layer *l, float *x, uint32_t heads, enum nb_role norm,
                   uint32_t token);

/* Decode: attention of position g->position has so many items, each a range of positions of one kv head. `part` of `parts` is
 * computed with thread `me`'s scratch; the owner of a head's last range stores the new key and value first.
 * nb_attention_join then gives the (heads, head_dim) result. */
uint32_t nb_attention_items(const struct nb_graph *g, uint32_t layer);
void nb_attention_decode(struct nb_graph *g, uint32_t layer, uint32_t part, uint32_t parts, unsigned me);
void nb_attention_join(const struct nb_graph *g, uint32_t layer, float *out);

/* Prefill of n tokens: items are runs of tokens of one kv head; the result replaces q. */
uint32_t nb_attention_runs(const struct nb_graph *g, uint32_t n);
void nb_attention_prefill(struct nb_graph *g, uint32_t layer, uint32_t n, uint32_t part, uint32_t parts, unsigned me);

#endif
