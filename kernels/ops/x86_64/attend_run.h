/* SPDX-License-Identifier: Apache-2.0
 * Attention of a run of queries (tokens x heads) to one range of positions, for vectors of NB_WIDTH floats that the level
 * names before (nb_vec and its operations). Tiles of up to six queries pass over a block of keys, later of values:
 *   scores: acc[query][2] over positions += q[i] in all lanes * channel i of the keys; for that a block of keys is turned once
 *           for all queries (a row is one channel of NB_KEYS positions), one of the 16 virtual lanes goes after the other,
 *           and the fold is additions of whole registers without a shuffle;
 *   values: acc[query][2] over channels += e in all lanes * value, in increasing position.
 * Six queries: 12 multiplies, 12 additions, 6 broadcasts and 2 conversions from half floats (4 instructions inside), 34 for 12
 * pairs: six cycles for two multipliers and two adders, and for six instructions a cycle. 12 sums, 2 keys, a query and a product
 * are the 16 registers of AVX2.
 * Positions that a query of a tile doesn't see get e = 0: an accumulator that began
 * as +0 is never -0, so adding a zero product of either sign leaves its bits. Positions that nobody sees are never read.
 * scores[] holds position p of the range at p % NB_RANGE. */
#ifndef NB_OPS_ATTEND_RUN_H
#define NB_OPS_ATTEND_RUN_H

enum { NB_LANE_VECTORS = (int)NB_LANES / (int)NB_WIDTH };
enum { NB_KEYS = 2 * NB_WIDTH, NB_TOGETHER = 6, NB_WHOLE_RUN = 96, NB_DEEPEST = 512, NB_VALUES = 64, NB_KV_AHEAD = 4096 };

/* Up to NB_WHOLE_RUN queries, in the order of tokens; from and to count from the start of the range. */
struct nb_run {
    uint32_t n, base; /* base: first position of the range */
    float scale, cap;
    const float *q[NB_WHOLE_RUN];
    float *scores[NB_WHOLE_RUN], *out[NB_WHOLE_RUN], *max, *sum;
    uint32_t from[NB_WHOLE_RUN], to[NB_WHOLE_RUN];
};

static inline void nb_run_take(struct nb_run *r, const struct nb_attention *a, uint32_t head_dim, uint32_t first) {
    const uint32_t left = a->tokens * a->heads - first;
    uint32_t t = first / a->heads, h = first % a->heads;
    r->n = left < NB_WHOLE_RUN ? left : NB_WHOLE_RUN;
    r->base = a->from[0] / NB_RANGE * NB_RANGE;
    r->scale = a->scale;
    r->cap = a->cap;
    r->max = a->max + first;
    r->sum = a->sum + first;
    for (uint32_t i = 0; i < r->n; i++) {
        r->q[i] = a->q + t * a->ldq + (size_t)h * head_dim;
        r->out[i] = a->out + t * a->ldo + (size_t)h * head_dim;
        r->scores[i] = a->scores + (size_t)(first + i) * NB_RANGE;
        r->from[i] = a->from[t] - r->base;
        r->to[i] = a->to[t] - r->base;
        if (++h == a->heads) h = 0, t++;
    }
}

/* How many queries the next tile takes of those left: 6, 4, 3, 2 or 1, without a small one where it can be helped. */
static inline uint32_t nb_run_tile(uint32_t left) {
    if (left >= 9 || left == 6) return 6;
    return left >= 7 ? 4 : left == 5 ? 3 : left;
}

/* work(tile, queries) for all tiles of a run, with the number of queries a constant */
#define NB_RUN_TILES(r, work)                                                                                                    \
    for (uint32_t i_ = 0, n_; i_ < (r)->n; i_ += n_) switch (n_ = nb_run_tile((r)->n - i_)) {                                    \
        case 1: work(i_, 1); break;                                                                                              \
        case 2: work(i_, 2); break;                                                                                              \
        case 3: work(i_, 3); break;                                                                                              \
        case 4: work(i_, 4); break;                                                                                              \
        default: work(i_, 6); break;                                                                                             \
        }

/* e^(score - max) of the positions that query q sees, zeros for all others of the run; their maximum and sum. */
NB_INLINE void nb_run_exp(const struct nb_run *r, uint32_t q) {
    const uint32_t from = r->from[q], to = r->to[q], first = from / NB_LANES * NB_LANES;
    const float cap = r->cap;
    float *scores = r->scores[q];
    const nb_vec lowest = nb_v_all(-3.402823466e+38f);
    nb_vec top[NB_LANE_VECTORS], lanes[NB_LANE_VECTORS];
    for (int v = 0; v < NB_LANE_VECTORS; v++) {
        top[v] = lowest;
        lanes[v] = nb_v_all(0);
    }
    for (uint32_t i = first; i < to; i += NB_LANES) {
        NB_UNROLL
        for (int v = 0; v < NB_LANE_VECTORS; v++) {
            const uint32_t at = i + (uint32_t)(v * NB_WIDTH);
            nb_vec x = nb_v_load(scores + at);
            if (cap != 0) nb_v_store(scores + at, x = nb_v_softcap(x, cap));
            if (at < from || at + NB_WIDTH > to) x = nb_v_seen(x, lowest, at, from, to);
            top[v] = nb_v_max(top[v], x);
        }
    }
    for (int v = 1; v < NB_LANE_VECTORS; v++) top[0] = nb_v_max(top[0], top[v]);
    r->max[q] = nb_v_largest(top[0]) + 0.0f; /* +0 even if only zeros of both signs were there */
    const nb_vec max = nb_v_all(r->max[q]);
    for (uint32_t i = r->from[0]; i < first; i++) scores[i] = 0;
    for (uint32_t i = (to + NB_LANES - 1) / NB_LANES * NB_LANES; i < r->to[r->n - 1]; i++) scores[i] = 0;
    for (uint32_t i = first; i < to; i += NB_LANES) {
        NB_UNROLL
        for (int v = 0; v < NB_LANE_VECTORS; v++) {
            const uint32_t at = i + (uint32_t)(v * NB_WIDTH);
            nb_vec e = nb_v_exp(nb_v_sub(nb_v_load(scores + at), max));
            if (at < from || at + NB_WIDTH > to) e = nb_v_seen(e, nb_v_all(0), at, from, to);
            nb_v_store(scores + at, e);
            lanes[v] = nb_v_add(lanes[v], e);
        }
    }
    r->sum[q] = nb_v_fold16(lanes);
}

#endif
