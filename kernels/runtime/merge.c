/* SPDX-License-Identifier: Apache-2.0
 * Byte-pair merging: a linked list of symbols and a heap of pairs that could merge, best rank first, leftmost first
 * among equals. An entry is stale once its symbol's rank has changed. Each merge takes one entry out and puts at most
 * two in, so that the heap holds at most two per symbol. */
#include <string.h>

#include "runtime/tokenizer_internal.h"

/* Slot of a hash in a table of `size` entries. */
static uint32_t slot_of(uint32_t hash, uint32_t size) { return (uint32_t)((uint64_t)hash * size >> 32); }

/* CRC-32 (zlib's), four bits at a time: the tool can hash a whole vocabulary with it in no time. */
static uint32_t text_hash(const uint8_t *text, size_t length) {
    static const uint32_t step[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc = step[(crc ^ text[i]) & 15] ^ crc >> 4;
        crc = step[(crc ^ text[i] >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

static uint32_t pair_hash(uint32_t left, uint32_t right) {
    uint32_t h = left * 0x9E3779B1u + right * 0x85EBCA6Bu;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    return h ^ h >> 13;
}

int32_t nb_lookup(const struct nb_tokenizer *t, const uint8_t *text, size_t length) {
    const struct nb_tokn_head *head = nb_head(t);
    const uint32_t *table = t->view[NB_T_TEXT_HASH];
    uint32_t size = nb_count(t, NB_T_TEXT_HASH);
    if (length > head->longest) return -1;
    uint32_t at = slot_of(text_hash(text, length), size);
    for (uint32_t probe = 0; probe < head->probe_text; probe++) {
        uint32_t id = table[at];
        if (id >= t->tokens) return -1;
        size_t found;
        const uint8_t *piece = nb_text(t, id, &found);
        if (found == length && memcmp(piece, text, length) == 0) return (int32_t)id;
        at = at + 1 < size ? at + 1 : 0;
    }
    return -1;
}

/* Result and rank of merging two tokens, -1 if they do not merge. */
static int32_t find_merge(const struct nb_tokenizer *t, uint32_t left, uint32_t right, uint32_t *rank) {
    const struct nb_merge *merges = t->view[NB_T_MERGES];
    const uint32_t *table = t->view[NB_T_MERGE_HASH];
    uint32_t size = nb_count(t, NB_T_MERGE_HASH), count = nb_count(t, NB_T_MERGES) / 3;
    uint32_t at = slot_of(pair_hash(left, right), size);
    for (uint32_t probe = 0; probe < nb_head(t)->probe_merge; probe++) {
        uint32_t i = table[at];
        if (i >= count) return -1;
        if (merges[i].left == left && merges[i].right == right) {
            *rank = i;
            return merges[i].result < t->tokens ? (int32_t)merges[i].result : -1;
        }
        at = at + 1 < size ? at + 1 : 0;
    }
    return -1;
}

struct merger {
    const struct nb_tokenizer *t;
    const uint8_t *text;
    struct nb_symbol *symbols;
    uint64_t *heap; /* rank << 32 | left symbol */
    size_t size;
};

static void sift_down(struct merger *m, uint64_t entry) {
    size_t slot = 0;
    for (size_t child = 1; child < m->size; child = 2 * slot + 1) {
        if (child + 1 < m->size && m->heap[child + 1] < m->heap[child]) child++;
        if (m->heap[child] >= entry) break;
        m->heap[slot] = m->heap[child];
        slot = child;
    }
    m->heap[slot] = entry;
}

static void push(struct merger *m, uint64_t entry) {
    size_t slot = m->size++;
    while (slot > 0 && entry < m->heap[(slot - 1) / 2]) {
        m->heap[slot] = m->heap[(slot - 1) / 2];
        slot = (slot - 1) / 2;
    }
    m->heap[slot] = entry;
}

/* Fills in what merging with the symbol after it would give and offers it to the heap. */
static void offer(struct merger *m, uint32_t left) {
    struct nb_symbol *a = &m->symbols[left];
    a->rank = NB_NO_RANK;
    if (a->after < 0) return;
    const struct nb_symbol *b = &m->symbols[a->after];
    if (m->t->kind != NB_KIND_SCORES) {
        a->result = find_merge(m->t, (uint32_t)a->id, (uint32_t)b->id, &a->rank);
    } else {
        if ((a->length | b->length) & NB_FROZEN) return;
        a->result = nb_lookup(m->t, m->text + a->at, (size_t)a->length + b->length);
        if (a->result >= 0) a->rank = ((const uint32_t *)m->t->view[NB_T_RANKS])[a->result];
    }
    if (a->result < 0) a->rank = NB_NO_RANK;
    if (a->rank != NB_NO_RANK) push(m, (uint64_t)a->rank << 32 | left);
}

void nb_merge_symbols(const struct nb_tokenizer *t, const uint8_t *text, struct nb_symbol *symbols, uint32_t count,
                      uint64_t *heap) {
    struct merger m = {t, text, symbols, heap, 0};
    for (uint32_t i = 0; i < count; i++) {
        symbols[i].before = (int32_t)i - 1;
        symbols[i].after = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (uint32_t i = 0; i < count; i++) offer(&m, i);
    while (m.size > 0) {
        uint32_t left = (uint32_t)m.heap[0], rank = (uint32_t)(m.heap[0] >> 32);
        m.size--;
        if (m.size > 0) sift_down(&m, m.heap[m.size]);
        struct nb_symbol *a = &symbols[left];
        if (a->rank != rank) continue;
        struct nb_symbol *b = &symbols[a->after];
        b->rank = NB_NO_RANK;
        a->id = a->result;
        a->length += b->length;
        a->after = b->after;
        if (a->after >= 0) symbols[a->after].before = (int32_t)left;
        offer(&m, left);
        if (a->before >= 0) offer(&m, (uint32_t)a->before);
    }
}
