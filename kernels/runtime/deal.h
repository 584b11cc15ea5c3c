/* SPDX-License-Identifier: Apache-2.0
 * Deals the pieces of a stage to threads. Each thread has a contiguous run of pieces, as long as its core is fast, and takes
 * them from the front; who has finished takes from the back of the longest rest. So a run is one long stream of memory, and
 * a slow or interrupted thread holds the others for one piece at most. Who computes a piece changes no bits. */
#ifndef NB_DEAL_H
#define NB_DEAL_H

#include <stdatomic.h>
#include <stdint.h>

enum { NB_THREADS_MAX = 256, NB_PIECES_MAX = 65535 };

/* What is left of a thread's run: stage << 32 | back << 16 | front. The rest of an older stage is a run that nobody has
 * touched yet: who needs it first works it out, so that no stage has to be prepared. Of a newer stage: we are late. */
struct nb_lane {
    _Alignas(128) _Atomic uint64_t rest;
};

struct nb_deal {
    uint32_t threads;
    uint32_t before[NB_THREADS_MAX + 1]; /* sum of the capacities of the threads before this one */
    struct nb_lane lane[NB_THREADS_MAX];
};

/* capacity: (threads), at least 1 each. */
void nb_deal_open(struct nb_deal *deal, uint32_t threads, const uint32_t *capacity);

/* Between stages: keeps a lane that has had no pieces for long from looking newer than the stage when numbers wrap. */
void nb_deal_sweep(struct nb_deal *deal, uint32_t thread, uint32_t stage);

/* A piece below `pieces` of the stage for a thread to compute, or -1: all are taken. Stage numbers count up by one; whoever
 * still holds an old number gets -1. A piece that was handed out is the thread's; nobody else gets it. */
int32_t nb_deal_take(struct nb_deal *deal, uint32_t thread, uint32_t stage, uint32_t pieces);

#endif
