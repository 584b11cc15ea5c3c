/* SPDX-License-Identifier: Apache-2.0
 * A chat template that was compiled to fixed parts at build time (section CHAT of kernels/FORMAT.md). */
#ifndef NB_CHAT_H
#define NB_CHAT_H

#include "tokenizer.h"

enum { NB_CHAT_TEXT = 4096 }; /* most bytes of a template's own text; scratch for encoding has room for them */

struct nb_chat { const uint8_t *data; size_t size; uint32_t count; uint32_t number[16]; };

/* size 0: the model has no compiled template; chat->count is 0 then and there is no chat mode. */
enum nb_status nb_chat_open(struct nb_chat *chat, const void *data, size_t size, struct nb_error *err);
/* Tokens of one user turn up to the point where the assistant speaks. turn 0 opens the conversation (BOS, system
 * text; system == NULL: what the template does without one); later turns first close the assistant's text.
 * The template's own markers become tokens; the user's and the system's text never do.
 * scratch: nb_tokenizer_scratch(t, system_length + user_length). */
enum nb_status nb_chat_turn(const struct nb_chat *chat, const struct nb_tokenizer *t, unsigned turn,
                            const char *system, size_t system_length, const char *user, size_t user_length,
                            int32_t *ids, size_t capacity, size_t *count, void *scratch, struct nb_error *err);

#endif
