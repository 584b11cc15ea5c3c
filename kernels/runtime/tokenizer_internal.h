/* SPDX-License-Identifier: Apache-2.0
 * What the files of the tokenizer share: names for section TOKN (kernels/FORMAT.md), splitting and merging. */
#ifndef NB_TOKENIZER_INTERNAL_H
#define NB_TOKENIZER_INTERNAL_H

#include "runtime/tokenizer.h"

enum { NB_KIND_BYTES, NB_KIND_CHARS, NB_KIND_SCORES };
enum {
    NB_TF_ADD_BOS = 1, NB_TF_WHOLE = 2, NB_TF_NFC = 4, NB_TF_TRIM = 8, NB_TF_SPACES = 16, NB_TF_PREFIX = 32,
    NB_TF_LATE_PREFIX = 64, NB_TF_LATE_PREFIX_FIRST = 128, NB_TF_BYTE_FALLBACK = 256, NB_TF_FUSE_UNK = 512,
    NB_TF_DROP_PREFIX = 1024, NB_TF_ALL = 2047,
};
enum { NB_ATTR_SPECIAL = 1, NB_ATTR_BYTE = 2, NB_ATTR_LOOKUP = 4, NB_ATTR_HOLE = 8 };
enum { NB_STAGE_NONE, NB_STAGE_DIGITS, NB_STAGE_GPT2, NB_STAGE_WORDS, NB_STAGE_LITERAL, NB_STAGE_SPACED };
enum { NB_ADDED_SPECIAL = 1, NB_ADDED_LSTRIP = 2, NB_ADDED_RSTRIP = 4, NB_ADDED_SINGLE_WORD = 8 };
enum {
    NB_T_STOPS, NB_T_OFFSETS, NB_T_TEXT, NB_T_ATTRS, NB_T_TEXT_HASH, NB_T_RANKS, NB_T_MERGES, NB_T_MERGE_HASH,
    NB_T_BYTE_IDS, NB_T_EARLY, NB_T_LATE, NB_T_ADDED_TEXT, NB_T_LITERAL, NB_T_COUNT,
};

struct nb_tokn_head {
    uint32_t version, kind, flags, tokens;
    int32_t bos, unk;
    uint32_t longest, probe_text, probe_merge, zero;
    uint8_t stages[8]; /* stage, argument, four times */
    struct { uint32_t at, count; } table[NB_T_COUNT];
};

struct nb_added { uint32_t at, length, id, flags; };
struct nb_merge { uint32_t left, right, result; };

static inline const struct nb_tokn_head *nb_head(const struct nb_tokenizer *t) { return (const void *)t->data; }
static inline uint32_t nb_count(const struct nb_tokenizer *t, int table) { return nb_head(t)->table[table].count; }

/* Text of a token. */
static inline const uint8_t *nb_text(const struct nb_tokenizer *t, uint32_t id, size_t *length) {
    const uint32_t *offsets = t->view[NB_T_OFFSETS];
    *length = offsets[id + 1] - offsets[id];
    return (const uint8_t *)t->view[NB_T_TEXT] + offsets[id];
}

/* Id of the token with this text, -1 if there is none. */
int32_t nb_lookup(const struct nb_tokenizer *t, const uint8_t *text, size_t length);
/* Entry of the added token (NB_T_EARLY or NB_T_LATE) that is the longest at text[at], NULL if there is none. */
const struct nb_added *nb_added_at(const struct nb_tokenizer *t, int table, const uint8_t *text, size_t n, size_t at);

/* End of the part of text[at..n) that one stage cuts off. */
size_t nb_split_end(const struct nb_tokenizer *t, unsigned stage, unsigned arg, const uint8_t *text, size_t n, size_t at);

/* One stretch between two merges that cannot happen. */
struct nb_symbol {
    uint32_t at, length; /* bytes in the text; the top bit of length: never merges */
    int32_t before, after, id, result; /* result of merging with `after` */
    uint32_t rank; /* of that merge */
};
#define NB_NO_RANK 0xFFFFFFFFu
#define NB_FROZEN 0x80000000u

/* Merges symbols[0..count) until nothing merges; `heap` has room for 2 * count numbers. The survivors are linked by
 * `after` from symbol 0. */
void nb_merge_symbols(const struct nb_tokenizer *t, const uint8_t *text, struct nb_symbol *symbols, uint32_t count,
                      uint64_t *heap);

#endif
