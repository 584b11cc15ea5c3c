/* SPDX-License-Identifier: Apache-2.0
 * Up to four query heads that share a cache go through an attention kernel at once; their number has to be a constant
 * for the kernel's accumulators to be registers. */
#ifndef NB_OPS_ATTEND_HEADS_H
#define NB_OPS_ATTEND_HEADS_H

/* The body of an nb_attend_fn, with its parameters' names: attend(q, kv, p0, p1, scale, scores, max, sum, out, heads)
 * for four heads as long as there are four, then for the rest. */
#define NB_ATTEND_BY_FOUR(attend)                                                                                       \
    while (heads) {                                                                                                     \
        const uint32_t now = heads < 4 ? heads : 4;                                                                     \
        switch (now) {                                                                                                  \
        case 4: attend(q, kv, p0, p1, scale, scores, max, sum, out, 4); break;                                          \
        case 3: attend(q, kv, p0, p1, scale, scores, max, sum, out, 3); break;                                          \
        case 2: attend(q, kv, p0, p1, scale, scores, max, sum, out, 2); break;                                          \
        default: attend(q, kv, p0, p1, scale, scores, max, sum, out, 1); break;                                         \
        }                                                                                                               \
        heads -= now;                                                                                                   \
        q += now * kv->head_dim, out += now * kv->head_dim, scores += now * NB_RANGE, max += now, sum += now;           \
    }

#endif
