/* SPDX-License-Identifier: Apache-2.0
 * Bytes of tokens to text that may be shown: stop strings are found across token boundaries, and what could still
 * become one is held back; characters come out whole,
 * bytes that are none as U+FFFD: always valid UTF-8. Fixed memory. */
#ifndef NB_STREAM_H
#define NB_STREAM_H

#include "runtime/tokenizer.h"

enum { NB_STOPS_MAX = 4, NB_STOP_BYTES = 64, NB_STREAM_OUT = 3 * (NB_TOK_PIECE_MAX + NB_STOP_BYTES) + 16 };

struct nb_stream {
    char stop[NB_STOPS_MAX][NB_STOP_BYTES];
    size_t stop_length[NB_STOPS_MAX];
    size_t stops;
    char held[NB_TOK_PIECE_MAX + NB_STOP_BYTES];
    size_t count; /* bytes held; less than NB_STOP_BYTES between calls */
    struct nb_utf8 utf8;
    int stopped;
};

/* NB_USAGE with E_STOP if there are too many stop strings, or an empty or too long one. */
enum nb_status nb_stream_start(struct nb_stream *s, const char *const *stops, size_t count, struct nb_error *err);
/* n <= NB_TOK_PIECE_MAX bytes more; writes what may be shown to out (room: NB_STREAM_OUT) and returns its length.
 * s->stopped becomes 1 when a stop string is complete; the text before it is all that comes out. */
size_t nb_stream_push(struct nb_stream *s, const char *bytes, size_t n, char *out);
/* The end: everything held comes out. */
size_t nb_stream_finish(struct nb_stream *s, char *out);

#endif
