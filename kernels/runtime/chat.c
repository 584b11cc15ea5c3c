/* SPDX-License-Identifier: Apache-2.0
 * One turn is a list of markers and texts. Texts between two markers are joined before they are encoded, because
 * a token may reach across the border between the template's words and the user's. */
#include "runtime/chat.h"

#include <string.h>

#include "runtime/tokenizer_internal.h"
#include "runtime/unicode.h"

enum { OPEN, OPEN_SYSTEM, AFTER_SYSTEM, AFTER_USER, NEXT, PARTS };
enum { TRIM_USER = 1, TRIM_SYSTEM = 2, HAS_SYSTEM = 4, ALL_FLAGS = 7 };
#define MARKER 0x80000000u

struct head { uint32_t version, flags, items, text; uint32_t count[PARTS]; };
struct item { uint32_t size, at; };

static enum nb_status refuse(struct nb_error *err, const char *what) {
    return nb_fail(err, NB_INPUT, "E_CHAT_SECTION", "chat section: %s", what);
}

enum nb_status nb_chat_open(struct nb_chat *chat, const void *data, size_t size, struct nb_error *err) {
    const struct head *head = data;
    memset(chat, 0, sizeof *chat);
    if (size == 0) return NB_OK;
    if (size < sizeof *head || (uintptr_t)data % 4) return refuse(err, "shorter than its header");
    if (head->version != 1)
        return nb_fail(err, NB_INPUT, "E_CHAT_SECTION", "chat section: version %u, this program reads 1", head->version);
    if (head->flags & ~(uint32_t)ALL_FLAGS) return refuse(err, "a flag that this program does not know");
    uint64_t items = 0, texts = 0;
    for (int i = 0; i < PARTS; i++) items += head->count[i];
    if (items != head->items || head->text > NB_CHAT_TEXT || sizeof *head + items * sizeof(struct item) + head->text > size)
        return refuse(err, "an item ends past it");
    const struct item *item = (const void *)(head + 1);
    for (uint32_t i = 0; i < head->items; i++) {
        if (item[i].size & MARKER) continue;
        if (item[i].at > head->text || item[i].size > head->text - item[i].at) return refuse(err, "an item ends past it");
        texts += item[i].size;
    }
    if (texts > NB_CHAT_TEXT) return refuse(err, "more text than it may give");
    chat->data = data;
    chat->size = size;
    chat->count = PARTS;
    return NB_OK;
}

/* A turn while it grows: `text` has not been encoded yet. */
struct turn {
    const struct nb_tokenizer *t;
    struct nb_error *err;
    int32_t *ids;
    size_t count, capacity;
    char *text;
    size_t length;
    void *scratch;
    int opening; /* nothing stands before it in the conversation */
};

static enum nb_status flush(struct turn *w) {
    size_t count;
    if (w->length == 0) return NB_OK;
    if (nb_tokenizer_bound(w->t, w->length) > w->capacity - w->count)
        return nb_fail(w->err, NB_INPUT, "E_PROMPT_TOO_LONG", "a text of %zu bytes does not fit", w->length);
    /* only the very first text may get the space that some vocabularies put at the start of a text */
    int follows = w->t->flags & NB_TF_LATE_PREFIX_FIRST && !(w->opening && w->count == 0);
    enum nb_status s = nb_tokenizer_encode(w->t, w->text, w->length, follows ? NB_TOK_CONTINUE : 0, w->ids + w->count, &count,
                                           w->scratch, w->err);
    w->length = 0;
    if (s) return s;
    w->count += count;
    return NB_OK;
}

static enum nb_status add_part(struct turn *w, const struct nb_chat *chat, int part) {
    const struct head *head = (const void *)chat->data;
    const struct item *item = (const void *)(head + 1);
    const char *text = (const char *)(item + head->items);
    for (int i = 0; i < part; i++) item += head->count[i];
    for (uint32_t i = 0; i < head->count[part]; i++) {
        if (!(item[i].size & MARKER)) {
            memcpy(w->text + w->length, text + item[i].at, item[i].size);
            w->length += item[i].size;
            continue;
        }
        enum nb_status s = flush(w);
        if (s) return s;
        uint32_t id = item[i].size & ~MARKER;
        if (id >= w->t->tokens) return refuse(w->err, "a marker that is no token");
        if (w->count == w->capacity) return nb_fail(w->err, NB_INPUT, "E_PROMPT_TOO_LONG", "the turn does not fit");
        w->ids[w->count++] = (int32_t)id;
    }
    return NB_OK;
}

/* What Python's str.strip() takes away. */
static int blank(uint32_t code) { return (nb_class(code) & NB_SPACE) || (code >= 0x1C && code <= 0x1F); }

static void add_words(struct turn *w, const char *words, size_t n, int trim) {
    const uint8_t *s = (const uint8_t *)words;
    size_t at = 0;
    uint32_t code;
    while (trim && at < n) {
        size_t length = nb_utf8_next(s + at, n - at, &code);
        if (!blank(code)) break;
        at += length;
    }
    while (trim && n > at) {
        size_t before = nb_utf8_prev(s, at, n, &code);
        if (!blank(code)) break;
        n = before;
    }
    if (n == at) return;
    memcpy(w->text + w->length, s + at, n - at);
    w->length += n - at;
}

enum nb_status nb_chat_turn(const struct nb_chat *chat, const struct nb_tokenizer *t, unsigned turn, const char *system,
                            size_t system_length, const char *user, size_t user_length, int32_t *ids, size_t capacity,
                            size_t *count, void *scratch, struct nb_error *err) {
    *count = 0;
    if (chat->count == 0) return nb_fail(err, NB_INPUT, "E_CHAT_NONE", "the model has no compiled chat template");
    unsigned flags = ((const struct head *)(const void *)chat->data)->flags;
    struct turn w = {.t = t, .err = err, .ids = ids, .capacity = capacity, .text = scratch, .opening = turn == 0};
    w.scratch = (char *)scratch + NB_CHAT_TEXT + (turn == 0 && system ? system_length : 0) + user_length;
    enum nb_status s;
    if (turn > 0 || !system) {
        s = add_part(&w, chat, turn > 0 ? NEXT : OPEN);
    } else {
        if (!(flags & HAS_SYSTEM))
            return nb_fail(err, NB_INPUT, "E_CHAT_SYSTEM", "the model's template takes no system text");
        s = add_part(&w, chat, OPEN_SYSTEM);
        if (s) return s;
        add_words(&w, system, system_length, flags & TRIM_SYSTEM);
        s = add_part(&w, chat, AFTER_SYSTEM);
    }
    if (s) return s;
    add_words(&w, user, user_length, flags & TRIM_USER);
    s = add_part(&w, chat, AFTER_USER);
    if (!s) s = flush(&w);
    if (!s) *count = w.count;
    return s;
}
