/* SPDX-License-Identifier: Apache-2.0
 * Bytes to tokens and back, over a vocabulary that stays in the mapping (section TOKN of kernels/FORMAT.md).
 * Nothing is allocated: the caller brings scratch memory. */
#ifndef NB_TOKENIZER_H
#define NB_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

enum {
    NB_TOK_BOS = 1,           /* put the BOS in front if the vocabulary says so (never twice) */
    NB_TOK_PARSE_SPECIAL = 2, /* markers in the text become their tokens; without it they are plain text */
    NB_TOK_SHOW_SPECIAL = 4,  /* decoding: special tokens give their text instead of nothing */
    NB_TOK_CONTINUE = 8,      /* encoding: the text follows other tokens (no BOS, no leading dummy space) */
};
enum { NB_TOK_PIECE_MAX = 1024 }; /* longest token in bytes */

struct nb_tokenizer {
    const uint8_t *data; /* the whole section */
    size_t size;
    uint32_t kind, flags, tokens;
    int32_t bos; /* -1: none */
    uint32_t stop_count;
    const int32_t *stops;
    /* further views into the section follow here, private to tokenizer.c */
    const void *view[16];
    uint32_t number[16];
};

/* Checks the section and takes views of it. NB_INPUT with E_TOK_* if it breaks a rule. */
enum nb_status nb_tokenizer_open(struct nb_tokenizer *t, const void *data, size_t size, struct nb_error *err);
/* Bytes of scratch that encoding `length` bytes of text needs. */
size_t nb_tokenizer_scratch(const struct nb_tokenizer *t, size_t length);
/* Most tokens that `length` bytes of text can become, BOS included. */
size_t nb_tokenizer_bound(const struct nb_tokenizer *t, size_t length);
/* Encodes any bytes (invalid UTF-8 included: byte by byte). ids has room for nb_tokenizer_bound(). */
enum nb_status nb_tokenizer_encode(const struct nb_tokenizer *t, const char *text, size_t length, unsigned flags,
                                   int32_t *ids, size_t *count, void *scratch, struct nb_error *err);
/* Bytes of one token, at most NB_TOK_PIECE_MAX; ids out of range and (by default) special tokens give 0.
 * `first`: nothing has been decoded before it, so a dummy leading space is dropped. */
size_t nb_tokenizer_piece(const struct nb_tokenizer *t, int32_t id, unsigned flags, int first, char *out);
int nb_tokenizer_is_stop(const struct nb_tokenizer *t, int32_t id);

/* Holds back an unfinished UTF-8 character between tokens. out has room for n + 4 bytes. */
struct nb_utf8 { unsigned char held[4]; unsigned count; };
size_t nb_utf8_push(struct nb_utf8 *u, const char *bytes, size_t n, char *out);
/* At the end: an unfinished character becomes U+FFFD. out has room for 4 bytes. */
size_t nb_utf8_flush(struct nb_utf8 *u, char *out);

#endif
