/* SPDX-License-Identifier: Apache-2.0
 * Attention to half-float keys and values for the vectors of attend_run.h. The level gives nb_turn, which turns the keys of
 * NB_WIDTH positions as half floats; they are widened where they are used, as a conversion from memory costs what a load
 * costs. A lane's sum begins with its first product and not with 0 + it: only the sign of a zero score could tell, and nothing
 * does (the maximum adds 0, e^-0 = e^0). Up to four queries don't pay for the turning and go through attend_few.h.
 * Needs: head_dim a multiple of 8 and of NB_WIDTH, from 16 to NB_DEEPEST. */
#ifndef NB_OPS_ATTEND_F16_H
#define NB_OPS_ATTEND_F16_H

#include "ops/x86_64/attend_few.h"

/* Turned keys of NB_KEYS positions: channels c and c + 8 of every 16, of NB_WIDTH positions, lie together. */
struct nb_keys {
    _Alignas(64) uint16_t of[NB_DEEPEST / 2][2][2][NB_WIDTH]; /* [channel][half of the positions][+ 8 channels][position] */
};

/* Writes of[...][half]; row: the NB_WIDTH positions */
NB_INLINE void nb_turn(struct nb_keys *to, const uint16_t *const *row, uint32_t half, uint32_t head_dim);

/* sum[query] = virtual lane `lane` of the products; `queries` constant */
NB_INLINE void nb_one_lane(nb_vec sum[NB_TOGETHER][2], const float *const *q, const struct nb_keys *keys, uint32_t head_dim,
                           uint32_t lane, int queries) {
    const uint16_t *k = keys->of[lane % 8][0][lane / 8];
    NB_UNROLL
    for (int t = 0; t < queries; t++) {
        NB_UNROLL
        for (int v = 0; v < 2; v++) sum[t][v] = nb_v_mul(nb_v_all(q[t][lane]), nb_v_values(k + 2 * NB_WIDTH * v, NB_KV_F16));
    }
    for (uint32_t i = lane + NB_LANES; i < head_dim; i += NB_LANES) {
        k += sizeof keys->of[0] * 8 / sizeof *k;
        const nb_vec x[2] = {nb_v_values(k, NB_KV_F16), nb_v_values(k + 2 * NB_WIDTH, NB_KV_F16)};
        NB_UNROLL
        for (int t = 0; t < queries; t++) {
            const nb_vec y = nb_v_all(q[t][i]);
            NB_UNROLL
            for (int v = 0; v < 2; v++) sum[t][v] = nb_v_add(sum[t][v], nb_v_mul(y, x[v]));
        }
    }
}

/* Scores of a tile for the NB_KEYS positions from p on */
NB_INLINE void nb_dots(const struct nb_run *r, uint32_t tile, const struct nb_keys *keys, uint32_t head_dim, uint32_t p,
                       const uint16_t *ahead, int queries) {
    nb_vec lanes[NB_LANES][NB_TOGETHER][2];
    const float *q[NB_TOGETHER];
    if (r->from[tile] >= p + NB_KEYS || r->to[tile + (uint32_t)queries - 1] <= p) return;
    NB_UNROLL
    for (int t = 0; t < queries; t++) q[t] = r->q[tile + (uint32_t)t];
    for (uint32_t l = 0; l < NB_LANES; l++) {
        nb_vec sum[NB_TOGETHER][2];
        if (!tile)
            for (uint32_t c = 0; c < head_dim * NB_KEYS / NB_LANES; c += 32)
                nb_v_fetch(ahead + l * head_dim * NB_KEYS / NB_LANES + c);
        nb_one_lane(sum, q, keys, head_dim, l, queries);
        NB_UNROLL
        for (int t = 0; t < queries; t++) {
            NB_UNROLL
            for (int v = 0; v < 2; v++) lanes[l][t][v] = sum[t][v];
        }
    }
    for (int t = 0; t < queries; t++) {
        NB_UNROLL
        for (int v = 0; v < 2; v++) {
            nb_vec four[4];
            NB_UNROLL
            for (int l = 0; l < 4; l++)
                four[l] =
                    nb_v_add(nb_v_add(lanes[l][t][v], lanes[l + 8][t][v]), nb_v_add(lanes[l + 4][t][v], lanes[l + 12][t][v]));
            const nb_vec sum = nb_v_add(nb_v_add(four[0], four[2]), nb_v_add(four[1], four[3]));
            nb_v_store(r->scores[tile + (uint32_t)t] + p + v * NB_WIDTH, nb_v_mul(sum, nb_v_all(r->scale)));
        }
    }
}

static void nb_many(const struct nb_run *r, const struct nb_kv *kv) {
    struct nb_keys keys;
    const uint32_t head_dim = kv->head_dim, end = r->to[r->n - 1];
    for (uint32_t p = r->from[0] / NB_KEYS * NB_KEYS; p < end; p += NB_KEYS) {
        const uint16_t *row[NB_KEYS];
        for (uint32_t i = 0; i < NB_KEYS; i++) { /* positions that nobody sees repeat one that somebody does */
            const uint32_t at = p + i < r->from[0] ? r->from[0] : p + i < end ? p + i : end - 1;
            row[i] = (const uint16_t *)kv->k + (size_t)(r->base + at) * head_dim;
        }
        nb_turn(&keys, row, 0, head_dim);
        nb_turn(&keys, row + NB_WIDTH, 1, head_dim);
#define NB_DOTS(tile, queries) nb_dots(r, tile, &keys, head_dim, p, row[0] + NB_KEYS * head_dim, queries)
        NB_RUN_TILES(r, NB_DOTS)
    }
}

static void nb_attend_run(const struct nb_run *r, const struct nb_kv *kv) {
    switch (r->n) {
    case 1: nb_few(r, kv, 1); break;
    case 2: nb_few(r, kv, 2); break;
    case 3: nb_few(r, kv, 3); break;
    case 4: nb_few(r, kv, 4); break;
    default: nb_many(r, kv); break;
    }
    for (uint32_t i = 0; i < r->n; i++) nb_run_exp(r, i);
    nb_run_weigh(r, kv, NB_KV_F16);
}

/* An nb_attend_fn */
NB_INLINE void nb_attend_f16(const struct nb_kv *kv, const struct nb_attention *a) {
    struct nb_run r;
    for (uint32_t i = 0; i < a->tokens * a->heads; i += NB_WHOLE_RUN) {
        nb_run_take(&r, a, kv->head_dim, i);
        nb_attend_run(&r, kv);
    }
}

#endif
