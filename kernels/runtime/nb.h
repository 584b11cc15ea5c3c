/* SPDX-License-Identifier: Apache-2.0
 * The public interface: what main.c and the Python runner call, and all that the shared library exports. One engine is
 * one sequence and belongs to one thread at a time; only nb_stop may be called from elsewhere (signal handlers too).
 * Every structure starts with its own size, so that a newer library can tell an older caller. */
#ifndef NB_H
#define NB_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/error.h"

#define NB_EXPORT __attribute__((visibility("default")))

struct nb_engine;

struct nb_options {
    uint32_t size;       /* sizeof(struct nb_options) */
    uint32_t threads;    /* 0: one for each fast core that this process may use */
    uint32_t context;    /* positions; 0: what the model allows, at most 2048 */
    uint32_t chunk;      /* most prompt tokens in one pass; 0: 512. Does not change the answer */
    uint32_t kv;         /* enum nb_kv_type: 0 f16, 1 int8 */
    uint32_t map_mode;   /* enum nb_map_mode: 0 auto, 1 populate, 2 lazy, 3 read */
    uint32_t all_logits; /* 1: nb_eval will be called */
    uint32_t reserved;
    const char *isa; /* "avx2", "scalar,avx2": only these levels; NULL: all that this CPU has */
};

struct nb_generation {
    uint32_t size;
    uint32_t max_tokens; /* 0: until the context is full */
    float temperature, top_p, min_p, repeat;
    uint32_t top_k, repeat_window;
    uint64_t seed;
    uint32_t stop_count, reserved;
    const char *stop[4];
};

enum nb_finish { NB_GOING, NB_FINISH_STOP, NB_FINISH_LENGTH, NB_FINISH_INTERRUPTED };

struct nb_piece {
    const char *text; /* whole characters; valid until the next call */
    uint32_t length;  /* bytes; may be 0 */
    int32_t id;       /* the token of this step; -1: none (the end) */
    uint32_t finish;  /* enum nb_finish */
    uint32_t reserved;
};

NB_EXPORT enum nb_status nb_open(const char *path, const struct nb_options *options, struct nb_engine **engine,
                                 struct nb_error *err);
NB_EXPORT void nb_close(struct nb_engine *e);

/* Text to tokens; flags: NB_TOK_* of tokenizer.h. *count is the number of tokens even when capacity is too small (then
 * NB_RESOURCE, E_CAPACITY, and nothing is written). */
NB_EXPORT enum nb_status nb_encode(struct nb_engine *e, const char *text, size_t length, uint32_t flags, int32_t *ids,
                                   size_t capacity, size_t *count, struct nb_error *err);
/* Bytes of one token, at most 1024 */
NB_EXPORT size_t nb_decode(const struct nb_engine *e, int32_t id, uint32_t flags, int first, char *out);
/* Tokens of one user turn through the model's chat template; NB_INPUT with E_CHAT_NONE if it has none. */
NB_EXPORT enum nb_status nb_chat(struct nb_engine *e, uint32_t turn, const char *system, const char *user, int32_t *ids,
                                 size_t capacity, size_t *count, struct nb_error *err);

/* Forgets the sequence. */
NB_EXPORT void nb_reset(struct nb_engine *e);
/* Appends tokens; the logits are then those after the last one. NB_INPUT with E_PROMPT_TOO_LONG and the counts if they
 * do not fit; E_TOKEN for an id that is not in the vocabulary. Interrupted: NB_BUSY with E_INTERRUPTED. */
NB_EXPORT enum nb_status nb_feed(struct nb_engine *e, const int32_t *ids, size_t n, struct nb_error *err);
/* (vocab) */
NB_EXPORT const float *nb_logits(const struct nb_engine *e);
/* nb_feed that also writes the logits after each token: out is (n, vocab). */
NB_EXPORT enum nb_status nb_eval(struct nb_engine *e, const int32_t *ids, size_t n, float *out, struct nb_error *err);

/* Starts generating after what was fed; then each call gives one token and the text that it completes. */
NB_EXPORT enum nb_status nb_begin(struct nb_engine *e, const struct nb_generation *g, struct nb_error *err);
NB_EXPORT enum nb_status nb_next(struct nb_engine *e, struct nb_piece *piece, struct nb_error *err);
/* Chooses from given logits (vocab) with the settings of nb_begin: for tests and for callers with their own loop. */
NB_EXPORT int32_t nb_choose(struct nb_engine *e, const float *logits, const int32_t *history, size_t length);
/* Makes the running call end soon, until the next nb_begin or nb_reset. */
NB_EXPORT void nb_stop(struct nb_engine *e);

enum nb_number {
    NB_POSITION,
    NB_CONTEXT,
    NB_VOCAB,
    NB_TOKENS,
    NB_THREADS,
    NB_CHUNK,
    NB_HAS_TOKENIZER,
    NB_HAS_CHAT,
    NB_TOKEN_BYTES
};
NB_EXPORT uint64_t nb_number(const struct nb_engine *e, uint32_t which);
/* The highest level in use. */
NB_EXPORT const char *nb_isa(const struct nb_engine *e);
/* JSON and plain text; like snprintf they return the length that the whole text has. */
NB_EXPORT size_t nb_info(const struct nb_engine *e, char *out, size_t size);
NB_EXPORT size_t nb_kernels(const struct nb_engine *e, char *out, size_t size);
/* Every checksum of the weights. */
NB_EXPORT enum nb_status nb_verify(const struct nb_engine *e, struct nb_error *err);

#endif
