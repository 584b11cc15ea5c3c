/* SPDX-License-Identifier: Apache-2.0
 * The engine from inside, for the program's own files (main, bench). */
#ifndef NB_ENGINE_H
#define NB_ENGINE_H

#include "runtime/chat.h"
#include "runtime/graph.h"
#include "runtime/nb.h"
#include "runtime/sampler.h"
#include "runtime/stream.h"
#include "runtime/tokenizer.h"

struct nb_engine {
    struct nb_model model;
    struct nb_hal hal;
    struct nb_pool *pool;
    struct nb_graph graph;
    struct nb_tokenizer tokenizer;
    struct nb_chat chat;
    int has_tokenizer;
    struct nb_sampler sampler;
    struct nb_stream stream;
    uint32_t tokens; /* ids below this can be chosen */
    uint32_t generated, max_tokens;
    int32_t pending; /* chosen but not fed; -1: none */
    enum nb_finish finish;
    volatile int stop;
    /* in the arena's extra part */
    int32_t *history;  /* (context) */
    size_t text_limit; /* longest text that can be encoded, in bytes */
    size_t ids_capacity;
    int32_t *ids;  /* (ids_capacity), at least a context's worth */
    void *scratch; /* of the tokenizer */
    char *out;     /* (NB_STREAM_OUT) */
};

/* Whether the CPU has what this program or library was built to need. NB_PLATFORM E_CPU. */
enum nb_status nb_check_cpu(struct nb_error *err);
/* The levels to use: text, or all that the CPU has when it is NULL. NB_USAGE E_ISA_UNKNOWN, NB_PLATFORM E_ISA_MISSING, E_CPU. */
enum nb_status nb_choose_isa(const char *text, uint32_t *isa, struct nb_error *err);
/* nb_eval that hands the rows to a function. */
enum nb_status nb_feed_rows(struct nb_engine *e, const int32_t *ids, size_t n, nb_logits_fn *sink, void *context,
                            struct nb_error *err);
size_t nb_kernel_list(const struct nb_hal *hal, char *out, size_t size);

#endif
