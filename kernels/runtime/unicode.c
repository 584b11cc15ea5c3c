/* SPDX-License-Identifier: Apache-2.0
 * The tables are runs: code << 8 | value holds until the next entry. The parts of a decomposition run from its start to
 * the next one's; compositions are triples sorted by (first, second). Same tables as nanobuild/tokenizers/unicode.py. */
#include "runtime/unicode.h"

#include <string.h>

#include "runtime/unicode_tables.h"

size_t nb_utf8_next(const uint8_t *s, size_t n, uint32_t *code) {
    uint32_t c = s[0];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    if (c >= 0xC2 && c < 0xE0 && n >= 2 && (s[1] & 0xC0) == 0x80) {
        *code = (c & 31) << 6 | (s[1] & 63u);
        return 2;
    }
    if (c >= 0xE0 && c < 0xF0 && n >= 3 && (s[1] & 0xC0) == 0x80 && (s[2] & 0xC0) == 0x80) {
        uint32_t v = (c & 15) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
        if (v >= 0x800 && (v < 0xD800 || v >= 0xE000)) {
            *code = v;
            return 3;
        }
    }
    if (c >= 0xF0 && c < 0xF5 && n >= 4 && (s[1] & 0xC0) == 0x80 && (s[2] & 0xC0) == 0x80 && (s[3] & 0xC0) == 0x80) {
        uint32_t v = (c & 7) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
        if (v >= 0x10000 && v < 0x110000) {
            *code = v;
            return 4;
        }
    }
    *code = 0xDC00 + c;
    return 1;
}

size_t nb_utf8_prev(const uint8_t *s, size_t low, size_t at, uint32_t *code) {
    for (size_t length = 1; length <= 4 && at >= low + length; length++)
        if (nb_utf8_next(s + at - length, length, code) == length && (length > 1 || s[at - 1] < 0x80)) return at - length;
    *code = 0xDC00u + s[at - 1];
    return at - 1;
}

/* Value of the run that holds `code`. */
static unsigned run(const uint32_t *table, size_t count, uint32_t code) {
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (table[middle] >> 8 <= code) low = middle;
        else high = middle;
    }
    return table[low] & 255;
}

unsigned nb_class(uint32_t code) {
    if (code < 0x80) {
        if ((code | 32) - 'a' < 26) return NB_LETTER | NB_WORD;
        if (code - '0' < 10) return NB_NUMBER | NB_DIGIT | NB_WORD;
        if (code == ' ' || code - 9 < 5) return NB_SPACE;
        return code == '_' ? NB_WORD : 0;
    }
    return run(nb_u_classes, NB_U_CLASSES, code);
}

enum { HANGUL = 0xAC00, HANGUL_COUNT = 11172, LEAD = 0x1100, VOWEL = 0x1161, TAIL = 0x11A7 };

/* At most four parts. */
static size_t decompose(uint32_t code, uint32_t *out) {
    if (code < 0xC0) {
        out[0] = code;
        return 1;
    }
    uint32_t syllable = code - HANGUL;
    if (syllable < HANGUL_COUNT) {
        out[0] = LEAD + syllable / 588;
        out[1] = VOWEL + syllable % 588 / 28;
        out[2] = TAIL + syllable % 28;
        return syllable % 28 ? 3 : 2;
    }
    size_t low = 0, high = NB_U_DECOMPOSED;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (nb_u_decomposed[middle] < code) low = middle + 1;
        else high = middle;
    }
    if (low == NB_U_DECOMPOSED || nb_u_decomposed[low] != code) {
        out[0] = code;
        return 1;
    }
    size_t count = nb_u_starts[low + 1] - nb_u_starts[low];
    memcpy(out, nb_u_parts + nb_u_starts[low], count * sizeof *out);
    return count;
}

static uint32_t compose(uint32_t a, uint32_t b) {
    if (a - LEAD < 19 && b - VOWEL < 21) return HANGUL + ((a - LEAD) * 21 + b - VOWEL) * 28;
    if (a - HANGUL < HANGUL_COUNT && (a - HANGUL) % 28 == 0 && b > TAIL && b < TAIL + 28) return a + b - TAIL;
    size_t low = 0, high = NB_U_COMPOSE / 3;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const uint32_t *t = nb_u_compose + 3 * middle;
        if (t[0] < a || (t[0] == a && t[1] < b)) low = middle + 1;
        else high = middle;
    }
    const uint32_t *t = nb_u_compose + 3 * low;
    return low < NB_U_COMPOSE / 3 && t[0] == a && t[1] == b ? t[2] : 0;
}

/* Puts marks (class << 24 | code) in the order of their class, equal ones as they were. Runs are short in any real
 * text; a long one is counted out so that no text can make this quadratic. */
static void order(uint32_t *marks, size_t n, uint32_t *spare) {
    if (n < 32) {
        for (size_t i = 1; i < n; i++) {
            uint32_t mark = marks[i];
            size_t at = i;
            for (; at > 0 && marks[at - 1] >> 24 > mark >> 24; at--) marks[at] = marks[at - 1];
            marks[at] = mark;
        }
        return;
    }
    uint32_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[(marks[i] >> 24) + 1]++;
    for (size_t i = 1; i < 257; i++) start[i] += start[i - 1];
    for (size_t i = 0; i < n; i++) spare[start[marks[i] >> 24]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

static size_t put(uint32_t code, uint8_t *out) {
    if (code < 0x80 || (code >= 0xDC00 && code < 0xE000)) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xC0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xE0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (code & 63));
    return 4;
}

/* Composes chars[0..count) (class << 24 | code) in place, returns the new count. */
static size_t recompose(uint32_t *chars, size_t count) {
    size_t out = 0, starter = 0;
    uint32_t last = 0;
    int open = 0; /* a starter has been seen */
    for (size_t i = 0; i < count; i++) {
        uint32_t mark = chars[i] >> 24, code = chars[i] & 0x1FFFFF;
        if (open && (out == starter + 1 || last < mark)) {
            uint32_t both = compose(chars[starter], code);
            if (both) {
                chars[starter] = both;
                continue;
            }
        }
        if (mark == 0) {
            starter = out;
            open = 1;
        }
        last = mark;
        chars[out++] = code;
    }
    return out;
}

size_t nb_nfc(const uint8_t *in, size_t n, uint8_t *out, uint32_t *work) {
    size_t plain = 0;
    while (plain < n && in[plain] < 0xCC) plain++; /* below U+0300 nothing changes */
    if (plain == n) {
        memcpy(out, in, n);
        return n;
    }
    size_t count = 0, size = 0;
    for (size_t at = 0; at < n;) {
        uint32_t code, parts[4];
        at += nb_utf8_next(in + at, n - at, &code);
        size_t pieces = decompose(code, parts);
        for (size_t i = 0; i < pieces; i++)
            work[count++] = parts[i] | (parts[i] < 0x300 ? 0 : (uint32_t)run(nb_u_combining, NB_U_COMBINING, parts[i]) << 24);
    }
    for (size_t i = 0; i < count;) {
        size_t end = i;
        while (end < count && work[end] >> 24) end++;
        if (end - i > 1) order(work + i, end - i, work + count);
        i = end + 1;
    }
    count = recompose(work, count);
    for (size_t i = 0; i < count; i++) size += put(work[i], out + size);
    return size;
}
