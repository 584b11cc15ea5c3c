/* SPDX-License-Identifier: Apache-2.0
 * The forward pass of a decoder, driven by the feature record alone. One arena at open holds the key/value cache, the
 * activations and every thread's scratch; a forward pass allocates nothing. The bits of the logits depend on the
 * tokens only: not on threads, chunks or whether tokens came one by one. */
#ifndef NB_GRAPH_H
#define NB_GRAPH_H

#include "hal/hal.h"
#include "runtime/model.h"
#include "runtime/pool.h"

/* The default context keeps an 8B model's cache at 256 MiB and the start below 20 ms; ask for more where it is needed. */
enum { NB_DEFAULT_CONTEXT = 2048, NB_DEFAULT_CHUNK = 512, NB_CHUNK_MAX = 4096 };

struct nb_graph_options {
    uint32_t context;    /* positions in the cache; 0: the model's max_positions, but at most NB_DEFAULT_CONTEXT */
    uint32_t chunk;      /* most prompt tokens in one pass; 0: NB_DEFAULT_CHUNK */
    uint32_t kv;         /* enum nb_kv_type */
    uint32_t all_logits; /* NB_WANT_ALL will be asked for: room for the logits of a whole tile */
    size_t extra;        /* bytes for the caller at the end of the arena */
};

struct nb_scratch; /* one thread's, graph_internal.h */

struct nb_graph {
    const struct nb_model *model;
    const struct nb_hal *hal;
    struct nb_pool *pool;
    const volatile int *stop; /* a forward pass that sees it nonzero ends early; may be NULL */
    uint32_t context, chunk, position;
    nb_attend_fn *attend;
    nb_kv_store_fn *kv_store;
    nb_gated_fn *gated;
    char *arena;
    size_t arena_size, kv_size, activation_size, scratch_size, extra_size;
    void *extra;
    /* sizes: hidden, q and kv rows padded to whole panels */
    uint32_t ld_hidden, ld_q, ld_kv, ld_ffn, ld_vocab, group, ranges, rot;
    struct nb_kv *kv;                         /* (layers, kv_heads) */
    float *x, *q, *k, *v, *proj;              /* (chunk, ld_*) */
    float *gate, *up;                         /* (ld_ffn), one token */
    float *cos, *sin;                         /* (ropes, chunk, rot) */
    float *part_max, *part_sum, *part_out;    /* (heads, ranges) twice, (ranges, heads * head_dim): one token */
    float *logits;                            /* (1, or NB_TILE with all_logits; ld_vocab) */
    struct nb_act act_hidden, act_q, act_ffn; /* tiles of NB_TILE */
    struct nb_act act_one;                    /* one token of max(hidden, heads * head_dim) columns */
    struct nb_scratch *scratch;               /* (threads) */
    int stopped, all_logits;
};

/* The context that a request (0: the default) means. */
uint32_t nb_graph_context(const struct nb_spec *spec, uint32_t request);
/* NB_RESOURCE with E_MEMORY and the pieces' sizes if the arena does not fit into the memory that is left. */
enum nb_status nb_graph_open(struct nb_graph *g, const struct nb_model *model, const struct nb_hal *hal, struct nb_pool *pool,
                             const struct nb_graph_options *options, struct nb_error *err);
void nb_graph_close(struct nb_graph *g);

enum nb_want { NB_WANT_NOTHING, NB_WANT_LAST, NB_WANT_ALL };
/* Receives logits: `count` rows of `vocab` floats, `stride` apart, for tokens first .. first + count - 1 of the call. */
typedef void nb_logits_fn(void *context, uint32_t first, uint32_t count, const float *logits, size_t stride);

/* Appends n tokens at g->position. The caller has checked ids < vocab and position + n <= context. NB_WANT_LAST leaves
 * the last token's logits in g->logits; NB_WANT_ALL hands all of them to sink. Returns 0 if *g->stop ended it (then
 * the position counts the chunks that were finished), else 1. */
int nb_forward(struct nb_graph *g, const int32_t *ids, uint32_t n, enum nb_want want, nb_logits_fn *sink, void *context);

/* Bytes of weights that one token's pass reads. */
size_t nb_graph_token_bytes(const struct nb_graph *g);
/* Multiply-adds of one token's matrix products, without the head. */
uint64_t nb_graph_token_macs(const struct nb_graph *g);

#endif
