/* SPDX-License-Identifier: Apache-2.0
 * Up to four query heads that share a cache go through an attention kernel at once; their number has to be a constant
 * for the kernel's accumulators to be registers. */
#ifndef NB_OPS_ATTEND_HEADS_H
#define NB_OPS_ATTEND_HEADS_H

/* The body of an nb_attend_fn, with its parameters' names: attend(q, kv, p0, p1, scale, cap, scores, max, sum, out, heads)
 * for each token, four heads as long as there are four, then the rest. */
#define NB_ATTEND_BY_FOUR(attend)                                                                                                \
    for (uint32_t t = 0; t < a->tokens; t++)                                                                                     \
        for (uint32_t h = 0; h < a->heads; h += 4) {                                                                             \
            const size_t at = (size_t)t * a->heads + h;                                                                          \
            const float *q = a->q + t * a->ldq + (size_t)h * kv->head_dim;                                                       \
            float *out = a->out + t * a->ldo + (size_t)h * kv->head_dim, *scores = a->scores + at * NB_RANGE;                    \
            float *max = a->max + at, *sum = a->sum + at;                                                                        \
            const uint32_t p0 = a->from[t], p1 = a->to[t];                                                                       \
            switch (a->heads - h) {                                                                                              \
            case 1: attend(q, kv, p0, p1, a->scale, a->cap, scores, max, sum, out, 1); break;                                    \
            case 2: attend(q, kv, p0, p1, a->scale, a->cap, scores, max, sum, out, 2); break;                                    \
            case 3: attend(q, kv, p0, p1, a->scale, a->cap, scores, max, sum, out, 3); break;                                    \
            default: attend(q, kv, p0, p1, a->scale, a->cap, scores, max, sum, out, 4); break;                                   \
            }                                                                                                                    \
        }

#endif
