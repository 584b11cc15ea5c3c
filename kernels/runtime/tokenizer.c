/* SPDX-License-Identifier: Apache-2.0
 * The twin of nanobuild/tokenizers/tokenizer.py. open() checks whatever the other functions index by, except the two
 * hash tables, whose entries are checked where they are read; so a damaged section gives an error or wrong text. */
#include <string.h>

#include "runtime/chat.h"
#include "runtime/tokenizer_internal.h"

#include "runtime/unicode.h"

_Static_assert(NB_T_COUNT <= 16 && sizeof(struct nb_tokn_head) == 152, "FORMAT.md says so");

enum { MAX_TOKENS = 4 << 20, MAX_MERGES = 1 << 20, MAX_PROBE = 1024, MAX_LITERAL = 16, MAX_TEXT = 1 << 27, PREFIX = 4 };
enum { EARLY_BITS = 0, LATE_BITS = 8 }; /* in t->number: first bytes of added tokens, 256 bits each */

static enum nb_status refuse(struct nb_error *err, const char *what) {
    return nb_fail(err, NB_INPUT, "E_TOK_SECTION", "tokenizer section: %s", what);
}

static const char *check_tables(struct nb_tokenizer *t) {
    static const uint8_t width[NB_T_COUNT] = {4, 4, 1, 1, 4, 4, 4, 4, 4, 4, 4, 1, 1};
    const struct nb_tokn_head *head = nb_head(t);
    for (int i = 0; i < NB_T_COUNT; i++) {
        uint64_t at = head->table[i].at, bytes = (uint64_t)head->table[i].count * width[i];
        if (at > t->size || bytes > t->size - at || at % 4) return "a table ends past it";
        t->view[i] = t->data + at;
    }
    if (nb_count(t, NB_T_OFFSETS) != t->tokens + 1 || nb_count(t, NB_T_ATTRS) != t->tokens ||
        nb_count(t, NB_T_BYTE_IDS) != 256 || nb_count(t, NB_T_MERGES) % 3 || nb_count(t, NB_T_MERGES) / 3 > MAX_MERGES ||
        nb_count(t, NB_T_EARLY) % 4 || nb_count(t, NB_T_LATE) % 4 || nb_count(t, NB_T_LITERAL) > MAX_LITERAL ||
        nb_count(t, NB_T_TEXT_HASH) == 0 || nb_count(t, NB_T_MERGE_HASH) == 0 ||
        (t->kind == NB_KIND_SCORES && nb_count(t, NB_T_RANKS) != t->tokens))
        return "tables disagree on their length";
    const uint32_t *offsets = t->view[NB_T_OFFSETS];
    uint32_t bad = offsets[0] | (offsets[t->tokens] != nb_count(t, NB_T_TEXT));
    for (uint32_t i = 0; i < t->tokens; i++) bad |= offsets[i + 1] - offsets[i] > NB_TOK_PIECE_MAX;
    if (bad) return "text offsets are out of order";
    const int32_t *bytes = t->view[NB_T_BYTE_IDS];
    for (int i = 0; i < 256; i++)
        if (bytes[i] < (t->flags & NB_TF_BYTE_FALLBACK ? 0 : -1) || bytes[i] >= (int64_t)t->tokens)
            return "an id is out of range";
    return NULL;
}

static const char *check_added(struct nb_tokenizer *t, int table, uint32_t *bits) {
    const struct nb_added *added = t->view[table], *last = NULL;
    const uint8_t *text = t->view[NB_T_ADDED_TEXT];
    uint32_t size = nb_count(t, NB_T_ADDED_TEXT);
    for (uint32_t i = 0; i < nb_count(t, table) / 4; last = &added[i++]) {
        const struct nb_added *a = &added[i];
        if (a->id >= t->tokens || a->at > size || a->length > size - a->at || a->length == 0 || a->length > NB_TOK_PIECE_MAX)
            return "an added token is out of range";
        bits[text[a->at] >> 5] |= 1u << (text[a->at] & 31);
        if (!last) continue;
        size_t common = a->length < last->length ? a->length : last->length;
        int order = memcmp(text + last->at, text + a->at, common);
        if (order > 0 || (order == 0 && last->length >= a->length)) return "added tokens are out of order";
    }
    return NULL;
}

enum nb_status nb_tokenizer_open(struct nb_tokenizer *t, const void *data, size_t size, struct nb_error *err) {
    const struct nb_tokn_head *head = data;
    memset(t, 0, sizeof *t);
    if (size < sizeof *head || (uintptr_t)data % 4) return refuse(err, "shorter than its header");
    if (head->version != 1)
        return nb_fail(err, NB_INPUT, "E_TOK_SECTION", "tokenizer section: version %u, this program reads 1", head->version);
    t->data = data;
    t->size = size;
    t->kind = head->kind;
    t->flags = head->flags;
    t->tokens = head->tokens;
    t->bos = head->bos;
    if (t->kind > NB_KIND_SCORES || t->flags & ~(uint32_t)NB_TF_ALL ||
        (t->flags & NB_TF_NFC && t->flags & (NB_TF_TRIM | NB_TF_SPACES | NB_TF_PREFIX)))
        return refuse(err, "a kind or flag that this program does not know");
    if (t->tokens == 0 || t->tokens > MAX_TOKENS || t->bos < -1 || t->bos >= (int64_t)t->tokens || head->unk < -1 ||
        head->unk >= (int64_t)t->tokens || head->probe_text > MAX_PROBE || head->probe_merge > MAX_PROBE)
        return refuse(err, "an id is out of range");
    const char *bad = check_tables(t);
    if (!bad) bad = check_added(t, NB_T_EARLY, t->number + EARLY_BITS);
    if (!bad) bad = check_added(t, NB_T_LATE, t->number + LATE_BITS);
    if (bad) return refuse(err, bad);
    for (int i = 0; i < 8; i += 2)
        if (head->stages[i] > NB_STAGE_SPACED || (head->stages[i] == NB_STAGE_LITERAL && !nb_count(t, NB_T_LITERAL)))
            return refuse(err, "a splitting stage that this program does not know");
    t->stop_count = nb_count(t, NB_T_STOPS);
    t->stops = t->view[NB_T_STOPS];
    return NB_OK;
}

const struct nb_added *nb_added_at(const struct nb_tokenizer *t, int table, const uint8_t *text, size_t n, size_t at) {
    const uint32_t *bits = t->number + (table == NB_T_EARLY ? EARLY_BITS : LATE_BITS);
    if (!(bits[text[at] >> 5] >> (text[at] & 31) & 1)) return NULL;
    const struct nb_added *added = t->view[table], *best = NULL;
    const uint8_t *pool = t->view[NB_T_ADDED_TEXT];
    uint32_t low = 0, high = nb_count(t, table) / 4;
    for (size_t depth = 0; low < high; depth++) { /* entries [low, high) share their first `depth` bytes with the text */
        if (added[low].length == depth) best = &added[low++];
        if (at + depth >= n) break;
        uint8_t byte = text[at + depth];
        for (int upper = 0; upper < 2; upper++) { /* first entry with a byte >= byte, then the first with one > byte */
            uint32_t a = low, b = high;
            while (a < b) {
                uint32_t middle = a + (b - a) / 2;
                if (pool[added[middle].at + depth] < byte + upper) a = middle + 1;
                else b = middle;
            }
            if (upper) high = a;
            else low = a;
        }
    }
    return best;
}

/* One call of encode. */
struct job {
    const struct nb_tokenizer *t;
    const char *fault;
    int32_t *ids;
    size_t count, bound;
    unsigned flags;
    uint8_t *clean; /* normalized text, PREFIX bytes of room before it */
    struct nb_symbol *symbols;
    uint64_t *heap; /* twice as many */
    size_t room; /* symbols */
};

static const uint8_t *mark(const struct nb_tokenizer *t, size_t *length) {
    *length = t->flags & NB_TF_SPACES ? 3 : 1;
    return (const uint8_t *)(t->flags & NB_TF_SPACES ? "\xE2\x96\x81" : " ");
}

/* How many tokens one byte of text can become at most: NFC grows by 3, a mark that is no token becomes its 3 bytes. */
static size_t growth(const struct nb_tokenizer *t) {
    size_t length;
    const uint8_t *m = mark(t, &length);
    return t->flags & NB_TF_NFC || (length == 3 && nb_lookup(t, m, length) < 0) ? 3 : 1;
}

static size_t clean_room(const struct nb_tokenizer *t, size_t length) {
    return t->flags & (NB_TF_NFC | NB_TF_SPACES) ? 3 * length + 2 * PREFIX : length + 2 * PREFIX;
}

size_t nb_tokenizer_bound(const struct nb_tokenizer *t, size_t length) {
    size_t prefixes = t->flags & (NB_TF_PREFIX | NB_TF_LATE_PREFIX | NB_TF_LATE_PREFIX_FIRST) ? 2 : 1;
    return growth(t) * (prefixes * length + 2) + 2;
}

static size_t symbol_room(const struct nb_tokenizer *t, size_t length) { return growth(t) * (length + PREFIX); }

/* With room for a chat turn: the joined text, which is longer by the template's own. */
size_t nb_tokenizer_scratch(const struct nb_tokenizer *t, size_t length) {
    size_t joined = length + NB_CHAT_TEXT, room = symbol_room(t, joined);
    return joined + room * (sizeof(struct nb_symbol) + 2 * sizeof(uint64_t)) + clean_room(t, joined) + 64;
}

static void emit(struct job *j, int32_t id) {
    if (j->count < j->bound) j->ids[j->count++] = id;
    else j->fault = "more tokens than it may give";
}

/* Adds a symbol for each token of one character; -1 stands for a character without a token. */
static uint32_t add_symbol(struct job *j, uint32_t count, size_t at, size_t length, int32_t id, int *was_unknown) {
    const struct nb_tokn_head *head = nb_head(j->t);
    int unknown = id < 0;
    if (unknown && j->t->kind != NB_KIND_SCORES) {
        if (head->unk < 0 || (*was_unknown && j->t->flags & NB_TF_FUSE_UNK)) {
            *was_unknown = 1;
            return count;
        }
        id = head->unk;
    }
    *was_unknown = unknown;
    if (count >= j->room) {
        j->fault = "more symbols than it may give";
        return count;
    }
    struct nb_symbol *s = &j->symbols[count];
    s->at = (uint32_t)at;
    s->length = (uint32_t)length;
    s->id = id;
    return count + 1;
}

static uint32_t symbols_of(struct job *j, const uint8_t *text, size_t n) {
    const struct nb_tokenizer *t = j->t;
    const int32_t *bytes = t->view[NB_T_BYTE_IDS];
    uint32_t count = 0;
    int unknown = 0;
    for (size_t at = 0; at < n;) {
        if (t->kind == NB_KIND_BYTES) {
            count = add_symbol(j, count, at, 1, bytes[text[at]], &unknown);
            at++;
            continue;
        }
        const struct nb_added *whole = t->kind == NB_KIND_SCORES ? nb_added_at(t, NB_T_LATE, text, n, at) : NULL;
        if (whole) {
            count = add_symbol(j, count, at, whole->length | NB_FROZEN, (int32_t)whole->id, &unknown);
            at += whole->length;
            continue;
        }
        uint32_t code;
        size_t length = nb_utf8_next(text + at, n - at, &code);
        int32_t id = nb_lookup(t, text + at, length);
        if (id < 0 && t->kind == NB_KIND_CHARS && t->flags & NB_TF_BYTE_FALLBACK)
            for (size_t i = 0; i < length; i++) count = add_symbol(j, count, at + i, 1, bytes[text[at + i]], &unknown);
        else count = add_symbol(j, count, at, length, id, &unknown);
        at += length;
    }
    return count;
}

/* A stretch of text within which anything may merge. */
static void encode_part(struct job *j, const uint8_t *text, size_t n) {
    const struct nb_tokenizer *t = j->t;
    if (t->flags & NB_TF_WHOLE) {
        int32_t id = nb_lookup(t, text, n);
        if (id >= 0) {
            emit(j, id);
            return;
        }
    }
    uint32_t count = symbols_of(j, text, n);
    if (count == 0) return;
    nb_merge_symbols(t, text, j->symbols, count, j->heap);
    const int32_t *bytes = t->view[NB_T_BYTE_IDS];
    int unknown = 0;
    for (int32_t i = 0; i >= 0; i = j->symbols[i].after) {
        const struct nb_symbol *s = &j->symbols[i];
        if (s->id >= 0) emit(j, s->id);
        else if (t->flags & NB_TF_BYTE_FALLBACK)
            for (uint32_t k = 0; k < s->length; k++) emit(j, bytes[text[s->at + k]]);
        else if (!unknown && nb_head(t)->unk >= 0) emit(j, nb_head(t)->unk);
        unknown = s->id < 0;
    }
}

static void encode_stages(struct job *j, const uint8_t *text, size_t n, int stage) {
    const uint8_t *stages = nb_head(j->t)->stages;
    if (stage == 4 || stages[2 * stage] == NB_STAGE_NONE) {
        encode_part(j, text, n);
        return;
    }
    for (size_t at = 0; at < n;) {
        size_t end = nb_split_end(j->t, stages[2 * stage], stages[2 * stage + 1], text, n, at);
        encode_stages(j, text + at, end - at, stage + 1);
        at = end;
    }
}

/* Text between two late added tokens. If it needs a space in front, that goes over bytes that are done with. */
static void encode_late(struct job *j, uint8_t *text, size_t n, int first, int follows) {
    size_t length;
    const uint8_t *m = mark(j->t, &length);
    unsigned flags = j->t->flags;
    if ((flags & NB_TF_LATE_PREFIX || (flags & NB_TF_LATE_PREFIX_FIRST && first)) && !follows &&
        (n < length || memcmp(text, m, length) != 0)) {
        text -= length;
        n += length;
        memcpy(text, m, length);
    }
    encode_stages(j, text, n, 0);
}

/* Spaces of in[0..n) to out by the flags TRIM, SPACES and PREFIX; out == in only without SPACES and PREFIX. */
static size_t normalize_spaces(const struct job *j, const uint8_t *in, size_t n, uint8_t *out, int follows) {
    unsigned flags = j->t->flags;
    size_t length, size = 0;
    const uint8_t *m = mark(j->t, &length);
    size_t at = 0;
    if (flags & NB_TF_TRIM) {
        while (at < n && in[at] == ' ') at++;
        while (n > at && in[n - 1] == ' ') n--;
    }
    if (flags & NB_TF_PREFIX && !follows && n > at) {
        memcpy(out, m, length);
        size = length;
    }
    for (; at < n; at++) {
        if (in[at] != ' ') out[size++] = in[at];
        else if (!(flags & NB_TF_TRIM) || in[at - 1] != ' ') {
            memcpy(out + size, m, length);
            size += length;
        }
    }
    if (flags & NB_TF_TRIM)
        while (size >= length && memcmp(out + size - length, m, length) == 0) size -= length;
    return size;
}

/* The next added token at or after *from and the place [*start, *stop) it takes; NULL: none is left. What lies before
 * `done` belongs to the token before. */
static const struct nb_added *next_added(const struct job *j, int table, const uint8_t *text, size_t n, size_t *from,
                                         size_t done, size_t *start, size_t *stop) {
    if (nb_count(j->t, table) == 0) return NULL;
    for (size_t at = *from; at < n;) {
        const struct nb_added *a = nb_added_at(j->t, table, text, n, at);
        if (!a) {
            at++;
            continue;
        }
        uint32_t code;
        size_t left = at, right = at + a->length;
        at = right;
        if (a->flags & NB_ADDED_SPECIAL && !(j->flags & NB_TOK_PARSE_SPECIAL)) continue;
        if (a->flags & NB_ADDED_SINGLE_WORD) {
            if (left > 0) {
                nb_utf8_prev(text, 0, left, &code);
                if (nb_class(code) & NB_WORD) continue;
            }
            if (right < n) {
                nb_utf8_next(text + right, n - right, &code);
                if (nb_class(code) & NB_WORD) continue;
            }
        }
        while (a->flags & NB_ADDED_LSTRIP && left > done) {
            size_t before = nb_utf8_prev(text, done, left, &code);
            if (!(nb_class(code) & NB_SPACE)) break;
            left = before;
        }
        while (a->flags & NB_ADDED_RSTRIP && right < n) {
            size_t length = nb_utf8_next(text + right, n - right, &code);
            if (!(nb_class(code) & NB_SPACE)) break;
            right += length;
        }
        *from = at;
        *start = left > done ? left : done;
        *stop = right;
        return a;
    }
    return NULL;
}

/* Text between two early added tokens. */
static void encode_stretch(struct job *j, const uint8_t *text, size_t n, int first) {
    const struct nb_tokenizer *t = j->t;
    int follows = first && j->flags & NB_TOK_CONTINUE;
    uint8_t *clean = j->clean + PREFIX;
    if (t->flags & NB_TF_NFC) n = nb_nfc(text, n, clean, (uint32_t *)(void *)j->symbols);
    else n = normalize_spaces(j, text, n, clean, follows);
    if (t->kind == NB_KIND_SCORES) {
        encode_stages(j, clean, n, 0);
        return;
    }
    size_t done = 0, from = 0, start, stop;
    const struct nb_added *a;
    while ((a = next_added(j, NB_T_LATE, clean, n, &from, done, &start, &stop)) != NULL) {
        if (start > done) encode_late(j, clean + done, start - done, first && done == 0, follows && done == 0);
        emit(j, (int32_t)a->id);
        done = stop;
    }
    if (done < n) encode_late(j, clean + done, n - done, first && done == 0, follows && done == 0);
}

enum nb_status nb_tokenizer_encode(const struct nb_tokenizer *t, const char *text, size_t length, unsigned flags,
                                   int32_t *ids, size_t *count, void *scratch, struct nb_error *err) {
    *count = 0;
    if (length > MAX_TEXT)
        return nb_fail(err, NB_INPUT, "E_TOK_TEXT", "text: %zu bytes, at most %d are allowed", length, MAX_TEXT);
    struct job j = {.t = t, .ids = ids, .bound = nb_tokenizer_bound(t, length), .flags = flags};
    j.room = symbol_room(t, length);
    j.heap = (void *)(((uintptr_t)scratch + 15) & ~(uintptr_t)15);
    j.symbols = (void *)(j.heap + 2 * j.room);
    j.clean = (uint8_t *)(j.symbols + j.room);
    const uint8_t *in = (const uint8_t *)text;
    size_t done = 0, from = 0, start, stop;
    const struct nb_added *a;
    int bos = flags & NB_TOK_BOS && !(flags & NB_TOK_CONTINUE) && t->flags & NB_TF_ADD_BOS && t->bos >= 0;
    if (bos) emit(&j, t->bos);
    while ((a = next_added(&j, NB_T_EARLY, in, length, &from, done, &start, &stop)) != NULL) {
        if (start > done) encode_stretch(&j, in + done, start - done, done == 0);
        emit(&j, (int32_t)a->id);
        done = stop;
    }
    if (done < length) encode_stretch(&j, in + done, length - done, done == 0);
    if (j.fault) return refuse(err, j.fault);
    if (bos && j.count > 1 && ids[1] == t->bos) memmove(ids, ids + 1, --j.count * sizeof *ids);
    *count = j.count;
    return NB_OK;
}

size_t nb_tokenizer_piece(const struct nb_tokenizer *t, int32_t id, unsigned flags, int first, char *out) {
    if (id < 0 || (uint32_t)id >= t->tokens) return 0;
    unsigned attr = ((const uint8_t *)t->view[NB_T_ATTRS])[id];
    if (attr & NB_ATTR_SPECIAL && !(flags & NB_TOK_SHOW_SPECIAL)) return 0;
    size_t length, size = 0;
    const uint8_t *text = nb_text(t, (uint32_t)id, &length);
    int spaces = t->flags & NB_TF_SPACES && !(attr & NB_ATTR_BYTE);
    for (size_t i = 0; i < length; i++) {
        if (spaces && length - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0) {
            out[size++] = ' ';
            i += 2;
        } else out[size++] = (char)text[i];
    }
    if (first && t->flags & NB_TF_DROP_PREFIX && size > 0 && out[0] == ' ') memmove(out, out + 1, --size);
    return size;
}

int nb_tokenizer_is_stop(const struct nb_tokenizer *t, int32_t id) {
    for (uint32_t i = 0; i < t->stop_count; i++)
        if (t->stops[i] == id) return 1;
    return 0;
}

/* Length of the unfinished character at the end of s[0..n): 0 if it ends well or can never become one. */
static unsigned unfinished(const unsigned char *s, size_t n) {
    for (unsigned length = 1; length <= 3 && length <= n; length++) {
        unsigned char lead = s[n - length], second = length > 1 ? s[n - length + 1] : 0x80;
        if ((lead & 0xC0) == 0x80) continue;
        unsigned wanted = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
        if (length >= wanted) return 0;
        if (length > 1 && ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                           (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)))
            return 0;
        return length;
    }
    return 0;
}

size_t nb_utf8_push(struct nb_utf8 *u, const char *bytes, size_t n, char *out) {
    size_t size = u->count <= 3 ? u->count : 0;
    memcpy(out, u->held, size);
    memcpy(out + size, bytes, n);
    size += n;
    u->count = unfinished((const unsigned char *)out, size);
    memcpy(u->held, out + size - u->count, u->count);
    return size - u->count;
}

size_t nb_utf8_flush(struct nb_utf8 *u, char *out) {
    if (!u->count) return 0;
    u->count = 0;
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}
