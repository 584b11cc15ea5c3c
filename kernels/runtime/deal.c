/* SPDX-License-Identifier: Apache-2.0
 * Claims are compare-and-swap on one word a thread, and relaxed: only the claim passes through it, data by the pool's words.
 * Why a claim cannot go to the wrong stage: it replaces a word that says this stage, or an older one. If the stage were over,
 * all its pieces would have been taken, so that every lane which had some said this stage or a newer one; a lane which had
 * none gives none. (A thread would have to stop between two instructions for 2^32 stages to take one number for another.) */
#include "runtime/deal.h"

void nb_deal_open(struct nb_deal *deal, uint32_t threads, const uint32_t *capacity) {
    deal->threads = threads;
    deal->before[0] = 0;
    for (uint32_t i = 0; i < threads; i++) {
        deal->before[i + 1] = deal->before[i] + capacity[i];
        atomic_init(&deal->lane[i].rest, 0);
    }
}

static uint64_t packed(uint32_t stage, uint32_t front, uint32_t back) { return (uint64_t)stage << 32 | back << 16 | front; }

void nb_deal_sweep(struct nb_deal *deal, uint32_t thread, uint32_t stage) {
    atomic_store_explicit(&deal->lane[thread].rest, packed(stage, 0, 0), memory_order_relaxed);
}

struct rest {
    uint32_t front, back;
};

/* What a thread's word means in this stage. */
static struct rest unpack(const struct nb_deal *deal, uint32_t thread, uint32_t stage, uint32_t pieces, uint64_t word) {
    const int32_t ahead = (int32_t)((uint32_t)(word >> 32) - stage);
    if (ahead == 0) return (struct rest){(uint32_t)word & 0xffff, (uint32_t)word >> 16};
    if (ahead > 0) return (struct rest){0, 0};
    const uint64_t all = deal->before[deal->threads];
    return (struct rest){(uint32_t)((uint64_t)pieces * deal->before[thread] / all),
                         (uint32_t)((uint64_t)pieces * deal->before[thread + 1] / all)};
}

/* A piece from the front (the owner) or the back of a thread's run, or -1. */
static int32_t take(struct nb_deal *deal, uint32_t thread, uint32_t stage, uint32_t pieces, int owner) {
    _Atomic uint64_t *word = &deal->lane[thread].rest;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed), after;
    struct rest rest;
    do {
        rest = unpack(deal, thread, stage, pieces, seen);
        if (rest.front >= rest.back) return -1;
        after = owner ? packed(stage, rest.front + 1, rest.back) : packed(stage, rest.front, rest.back - 1);
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, after, memory_order_relaxed, memory_order_relaxed));
    return (int32_t)(owner ? rest.front : rest.back - 1);
}

/* The thread with the longest rest, or the number of threads. */
static uint32_t longest(const struct nb_deal *deal, uint32_t stage, uint32_t pieces) {
    uint32_t found = deal->threads, most = 0;
    for (uint32_t i = 0; i < deal->threads; i++) {
        const uint64_t word = atomic_load_explicit(&deal->lane[i].rest, memory_order_relaxed);
        const struct rest rest = unpack(deal, i, stage, pieces, word);
        if (rest.back > rest.front && rest.back - rest.front > most) {
            most = rest.back - rest.front;
            found = i;
        }
    }
    return found;
}

int32_t nb_deal_take(struct nb_deal *deal, uint32_t thread, uint32_t stage, uint32_t pieces) {
    int32_t piece = take(deal, thread, stage, pieces, 1);
    for (uint32_t from; piece < 0 && (from = longest(deal, stage, pieces)) < deal->threads;)
        piece = take(deal, from, stage, pieces, 0);
    return piece;
}
