/* SPDX-License-Identifier: Apache-2.0
 * UTF-8, character classes and canonical composition. A byte that is no UTF-8 counts as one character of no class
 * with the code 0xDC00 + byte, which no valid text contains, so that any bytes go through unchanged. */
#ifndef NB_UNICODE_H
#define NB_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum { NB_LETTER = 1, NB_NUMBER = 2, NB_MARK = 4, NB_SPACE = 8, NB_DIGIT = 16, NB_WORD = 32 };

/* Length (1 to 4) of the character at s, n >= 1 bytes are left; its code goes to *code. */
size_t nb_utf8_next(const uint8_t *s, size_t n, uint32_t *code);
/* Start of the character that ends at `at` (> low); its code goes to *code. */
size_t nb_utf8_prev(const uint8_t *s, size_t low, size_t at, uint32_t *code);
/* Class bits of a character. */
unsigned nb_class(uint32_t code);
/* Canonical composition. out has room for 3 n bytes, work for nb_nfc_work(n) numbers; returns the length. */
size_t nb_nfc(const uint8_t *in, size_t n, uint8_t *out, uint32_t *work);
static inline size_t nb_nfc_work(size_t n) { return 3 * n + 8; }

#endif
