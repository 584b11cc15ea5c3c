/* SPDX-License-Identifier: Apache-2.0
 * Stop strings are short and few, so plain comparison at every place is fast enough. The earliest match wins. */
#include "runtime/stream.h"

#include <string.h>

enum nb_status nb_stream_start(struct nb_stream *s, const char *const *stops, size_t count, struct nb_error *err) {
    memset(s, 0, sizeof *s);
    if (count > NB_STOPS_MAX) return nb_fail(err, NB_USAGE, "E_STOP", "%zu stop strings, allowed are %d", count, NB_STOPS_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(stops[i]);
        if (length == 0 || length > NB_STOP_BYTES)
            return nb_fail(err, NB_USAGE, "E_STOP", "stop string of %zu bytes, allowed are 1 to %d", length, NB_STOP_BYTES);
        memcpy(s->stop[i], stops[i], length);
        s->stop_length[i] = length;
    }
    s->stops = count;
    return NB_OK;
}

/* 1 if the bytes at `at` are a stop string; *part becomes 1 if they end before it is complete. */
static int match(const struct nb_stream *s, size_t at, int *part) {
    size_t left = s->count - at;
    for (size_t i = 0; i < s->stops; i++) {
        size_t n = s->stop_length[i];
        if (memcmp(s->held + at, s->stop[i], left < n ? left : n)) continue;
        if (left >= n) return 1;
        *part = 1;
    }
    return 0;
}

/* Length of the character at p, or of the bytes that one U+FFFD stands for when it is none (*valid 0): the longest
 * beginning of a character, as Unicode recommends and Python does. */
static size_t character(const unsigned char *p, size_t n, int *valid) {
    const unsigned char c = p[0];
    size_t length = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    *valid = length > 0;
    for (size_t i = 1; i < length; i++) {
        unsigned char low = 0x80, high = 0xBF;
        if (i == 1 && c == 0xE0) low = 0xA0;
        if (i == 1 && c == 0xED) high = 0x9F;
        if (i == 1 && c == 0xF0) low = 0x90;
        if (i == 1 && c == 0xF4) high = 0x8F;
        if (i < n && p[i] >= low && p[i] <= high) continue;
        *valid = 0;
        return i;
    }
    return length ? length : 1;
}

/* n bytes that may be shown: unfinished characters wait, bytes that are no characters become U+FFFD. */
static size_t show(struct nb_stream *s, size_t n, char *out) {
    char text[sizeof s->held + 4];
    size_t size = nb_utf8_push(&s->utf8, s->held, n, text), shown = 0;
    for (size_t at = 0; at < size;) {
        int valid;
        size_t length = character((const unsigned char *)text + at, size - at, &valid);
        memcpy(out + shown, valid ? text + at : "\xEF\xBF\xBD", valid ? length : 3);
        shown += valid ? length : 3;
        at += length;
    }
    return shown;
}

size_t nb_stream_push(struct nb_stream *s, const char *bytes, size_t n, char *out) {
    memcpy(s->held + s->count, bytes, n);
    s->count += n;
    size_t keep = 0; /* bytes from here on may be the beginning of a stop string */
    int part = 0;
    while (keep < s->count && !part) {
        if (match(s, keep, &part)) {
            s->stopped = 1;
            s->count = keep;
            break;
        }
        keep += !part;
    }
    size_t shown = show(s, keep, out);
    s->count -= keep;
    memmove(s->held, s->held + keep, s->count);
    return shown;
}

size_t nb_stream_finish(struct nb_stream *s, char *out) {
    size_t shown = show(s, s->count, out);
    s->count = 0;
    return shown + nb_utf8_flush(&s->utf8, out + shown);
}
