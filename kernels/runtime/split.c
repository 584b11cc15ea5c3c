/* SPDX-License-Identifier: Apache-2.0
 * The splitting stages by hand; the twin of nanobuild/tokenizers/split.py. Each alternative of a pattern is one `if`,
 * in the pattern's order, and every stage is linear in the text. */
#include <string.h>

#include "runtime/tokenizer_internal.h"
#include "runtime/unicode.h"

struct cursor {
    const uint8_t *text;
    size_t n;
};

/* End of the run of characters that have (or do not have) one of the class bits. */
static size_t run(struct cursor c, size_t at, unsigned bits, int wanted) {
    while (at < c.n) {
        uint32_t code;
        size_t length = nb_utf8_next(c.text + at, c.n - at, &code);
        if (((nb_class(code) & bits) != 0) != wanted) break;
        at += length;
    }
    return at;
}

static unsigned class_at(struct cursor c, size_t at, size_t *length) {
    uint32_t code;
    *length = nb_utf8_next(c.text + at, c.n - at, &code);
    return nb_class(code);
}

/* End of the part that starts with whitespace: the last blank goes to the next word. */
static size_t spaces(struct cursor c, size_t at) {
    size_t end = run(c, at, NB_SPACE, 1);
    if (end == c.n) return end;
    uint32_t code;
    size_t last = nb_utf8_prev(c.text, at, end, &code);
    return last > at ? last : end;
}

/* Length of the English contraction at the apostrophe, 0 if there is none. */
static size_t contraction(struct cursor c, size_t at, int fold, int long_s) {
    size_t left = c.n - at - 1;
    const uint8_t *tail = c.text + at + 1;
    if (left == 0) return 0;
    uint8_t a = tail[0], b = left > 1 ? tail[1] : 0;
    if (fold && a >= 'A' && a <= 'Z') a |= 32;
    if (fold && b >= 'A' && b <= 'Z') b |= 32;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (long_s && a == 0xC5 && b == 0xBF) return 3;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

static size_t gpt2(struct cursor c, size_t at) {
    size_t length, body = at;
    if (c.text[at] == '\'' && (length = contraction(c, at, 0, 0)) > 0) return at + length;
    if (c.text[at] == ' ' && at + 1 < c.n) body++;
    unsigned kind = class_at(c, body, &length);
    if (kind & NB_LETTER) return run(c, body, NB_LETTER, 1);
    if (kind & NB_NUMBER) return run(c, body, NB_NUMBER, 1);
    if (!(kind & NB_SPACE)) return run(c, body, NB_LETTER | NB_NUMBER | NB_SPACE, 0);
    return spaces(c, at);
}

static int is_newline(uint8_t byte) { return byte == '\r' || byte == '\n'; }

static size_t words(struct cursor c, size_t at, unsigned arg) {
    unsigned letter = arg & 16 ? NB_LETTER | NB_MARK : NB_LETTER;
    size_t length, next, body = at;
    uint8_t byte = c.text[at];
    if (byte == '\'' && (length = contraction(c, at, 1, (arg & 32) != 0)) > 0) return at + length;
    unsigned kind = class_at(c, at, &length);
    if (kind & letter) return run(c, at, letter, 1);
    if (!is_newline(byte) && !(kind & (NB_LETTER | NB_NUMBER)) && at + length < c.n &&
        (class_at(c, at + length, &next) & letter))
        return run(c, at + length, letter, 1);
    if (kind & NB_NUMBER) {
        unsigned most = arg & 15;
        if (!most) return run(c, at, NB_NUMBER, 1);
        for (unsigned i = 0; i < most && at < c.n && (class_at(c, at, &length) & NB_NUMBER); i++) at += length;
        return at;
    }
    if (byte == ' ' && at + 1 < c.n) body++;
    if (!(class_at(c, body, &length) & (NB_SPACE | letter | NB_NUMBER))) {
        size_t end = run(c, body, NB_SPACE | letter | NB_NUMBER, 0);
        while (end < c.n && is_newline(c.text[end])) end++;
        return end;
    }
    for (size_t end = run(c, at, NB_SPACE, 1); end > at; end--)
        if (is_newline(c.text[end - 1])) return end;
    return spaces(c, at);
}

static size_t digits(struct cursor c, size_t at, unsigned arg) {
    size_t length;
    if (!(class_at(c, at, &length) & NB_DIGIT)) return run(c, at, NB_DIGIT, 0);
    return arg ? at + length : run(c, at, NB_DIGIT, 1);
}

static size_t literal(struct cursor c, size_t at, unsigned arg, const uint8_t *text, size_t size) {
#define HERE(i) (c.n - (i) >= size && memcmp(c.text + (i), text, size) == 0)
    size_t end = at;
    if (HERE(at)) {
        end = at + size;
        if (arg != 2 || end == c.n || HERE(end)) return end;
    }
    while (end < c.n && !HERE(end)) end++;
    return arg == 1 && end < c.n ? end + size : end;
#undef HERE
}

/* Space marks, then what follows up to the next one, which `joins` may bind to what is before it. */
static size_t spaced(struct cursor c, size_t at, const uint8_t *joins, size_t count) {
    static const uint8_t mark[3] = {0xE2, 0x96, 0x81};
    while (at < c.n) {
        while (c.n - at >= 3 && memcmp(c.text + at, mark, 3) == 0) at += 3;
        while (at < c.n && !(c.text[at] == mark[0] && c.n - at >= 3 && memcmp(c.text + at, mark, 3) == 0)) at++;
        if (count == 0 || !memchr(joins, c.text[at - 1], count)) break;
    }
    return at;
}

size_t nb_split_end(const struct nb_tokenizer *t, unsigned stage, unsigned arg, const uint8_t *text, size_t n, size_t at) {
    struct cursor c = {text, n};
    switch (stage) {
    case NB_STAGE_DIGITS: return digits(c, at, arg);
    case NB_STAGE_GPT2: return gpt2(c, at);
    case NB_STAGE_WORDS: return words(c, at, arg);
    case NB_STAGE_LITERAL: return literal(c, at, arg, t->view[NB_T_LITERAL], nb_count(t, NB_T_LITERAL));
    case NB_STAGE_SPACED: return spaced(c, at, t->view[NB_T_LITERAL], nb_count(t, NB_T_LITERAL));
    default: return n;
    }
}
