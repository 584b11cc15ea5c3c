/* SPDX-License-Identifier: Apache-2.0
 * Scores of up to four queries with half-float keys, straight from the cache: dot products go along the channels, four at
 * once (of four queries with one key, two with two or one with four), and fold together. */
#ifndef NB_OPS_ATTEND_FEW_H
#define NB_OPS_ATTEND_FEW_H

#include "ops/x86_64/attend_values.h"

/* acc[query and key] += products of channels i .. i + vectors * NB_WIDTH */
NB_INLINE void nb_few_step(nb_vec acc[4][NB_LANE_VECTORS], const struct nb_run *r, const uint16_t *k, uint32_t head_dim,
                           uint32_t i, int queries, int keys, int vectors) {
    NB_UNROLL
    for (int key = 0; key < keys; key++) {
        NB_UNROLL
        for (int v = 0; v < vectors; v++) {
            const uint32_t at = i + (uint32_t)(v * NB_WIDTH);
            const nb_vec x = nb_v_values(k + (size_t)key * head_dim + at, NB_KV_F16);
            NB_UNROLL
            for (int t = 0; t < queries; t++) {
                nb_vec *sum = &acc[t * keys + key][v];
                *sum = nb_v_add(*sum, nb_v_mul(nb_v_load(r->q[t] + at), x));
            }
        }
    }
}

/* Scores of queries 0 .. queries - 1 for `keys` positions from p on, straight from the cache: four dot products fold at
 * once. queries * keys <= 4, both constant */
NB_INLINE void nb_few_dots(const struct nb_run *r, const uint16_t *k, uint32_t head_dim, uint32_t p, int queries, int keys) {
    nb_vec acc[4][NB_LANE_VECTORS];
    NB_UNROLL
    for (int d = 0; d < 4; d++) {
        NB_UNROLL
        for (int v = 0; v < NB_LANE_VECTORS; v++) acc[d][v] = nb_v_all(0);
    }
    uint32_t i = 0;
    for (; i + NB_LANES <= head_dim; i += NB_LANES) nb_few_step(acc, r, k, head_dim, i, queries, keys, NB_LANE_VECTORS);
    if (i < head_dim) nb_few_step(acc, r, k, head_dim, i, queries, keys, 1); /* eight are left: lanes 0..7 */
    float four[4];
    _mm_storeu_ps(four, _mm_mul_ps(nb_v_fold4(acc), _mm_set1_ps(r->scale)));
    NB_UNROLL
    for (int t = 0; t < queries; t++) {
        NB_UNROLL
        for (int key = 0; key < keys; key++) r->scores[t][p + (uint32_t)key] = four[t * keys + key];
    }
}

NB_INLINE void nb_few(const struct nb_run *r, const struct nb_kv *kv, int queries) {
    const uint32_t keys = queries == 1 ? 4 : queries == 2 ? 2 : 1, head_dim = kv->head_dim, end = r->to[r->n - 1];
    const uint16_t *k = (const uint16_t *)kv->k + (size_t)r->base * head_dim;
    uint32_t p = r->from[0];
    for (; p + keys <= end; p += keys) {
        for (uint32_t c = 0; c < keys * head_dim; c += 32) nb_v_fetch((const char *)(k + (size_t)p * head_dim + c) + NB_KV_AHEAD);
        nb_few_dots(r, k + (size_t)p * head_dim, head_dim, p, queries, (int)keys);
    }
    for (; p < end; p++) nb_few_dots(r, k + (size_t)p * head_dim, head_dim, p, queries, 1);
}

#endif
