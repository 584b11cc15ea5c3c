/* SPDX-License-Identifier: Apache-2.0
 * The values' side of attend_run.h: weighted sums of a run, in increasing position. */
#ifndef NB_OPS_ATTEND_VALUES_H
#define NB_OPS_ATTEND_VALUES_H

#include "ops/x86_64/attend_run.h"

/* Adds the tile's part of positions [from, to) to its outputs, channels c .. c + vectors * NB_WIDTH. */
NB_INLINE void nb_run_weigh_tile(const struct nb_run *r, uint32_t tile, const struct nb_kv *kv, uint32_t type, uint32_t from,
                                 uint32_t to, uint32_t c, int queries, int vectors) {
    const size_t size = type == NB_KV_F16 ? 2 : 1, row = size * kv->head_dim;
    const uint8_t *v = (const uint8_t *)kv->v + (r->base + from) * row + c * size;
    nb_vec acc[NB_TOGETHER][8];
    const float *e[NB_TOGETHER];
    NB_UNROLL
    for (int q = 0; q < queries; q++) {
        e[q] = r->scores[tile + (uint32_t)q];
        NB_UNROLL
        for (int i = 0; i < vectors; i++) acc[q][i] = nb_v_load(r->out[tile + (uint32_t)q] + c + i * NB_WIDTH);
    }
    for (uint32_t p = from; p < to; p++, v += row) {
        nb_vec x[8];
        NB_UNROLL
        for (size_t line = 0; line < size * NB_WIDTH * (size_t)vectors; line += 64) nb_v_fetch(v + NB_VALUES * row + line);
        NB_UNROLL
        for (int i = 0; i < vectors; i++) x[i] = nb_v_values(v + size * NB_WIDTH * (size_t)i, type);
        NB_UNROLL
        for (int q = 0; q < queries; q++) {
            const nb_vec weight = nb_v_all(e[q][p]);
            NB_UNROLL
            for (int i = 0; i < vectors; i++) acc[q][i] = nb_v_add(acc[q][i], nb_v_mul(weight, x[i]));
        }
    }
    NB_UNROLL
    for (int q = 0; q < queries; q++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) nb_v_store(r->out[tile + (uint32_t)q] + c + i * NB_WIDTH, acc[q][i]);
    }
}

/* All channels of one tile; few queries take more channels at once, so that enough additions overlap. */
NB_INLINE void nb_run_weigh_all(const struct nb_run *r, uint32_t tile, const struct nb_kv *kv, uint32_t type, uint32_t p0,
                                uint32_t p1, int queries) {
    const int vectors = queries == 1 ? 8 : queries == 2 ? 4 : 2;
    const uint32_t last = tile + (uint32_t)queries - 1, head_dim = kv->head_dim, width = (uint32_t)(vectors * NB_WIDTH);
    const uint32_t from = r->from[tile] > p0 ? r->from[tile] : p0, to = r->to[last] < p1 ? r->to[last] : p1;
    uint32_t c = 0;
    if (from >= to) return;
    for (; c + width <= head_dim; c += width) nb_run_weigh_tile(r, tile, kv, type, from, to, c, queries, vectors);
    for (; c < head_dim; c += NB_WIDTH) nb_run_weigh_tile(r, tile, kv, type, from, to, c, queries, 1);
}

/* The weighted sums of values of the whole run, NB_VALUES positions (they fit into L1) after the other. */
NB_INLINE void nb_run_weigh(const struct nb_run *r, const struct nb_kv *kv, uint32_t type) {
    const uint32_t end = r->to[r->n - 1];
    for (uint32_t i = 0; i < r->n; i++) memset(r->out[i], 0, kv->head_dim * sizeof(float));
    for (uint32_t p0 = r->from[0]; p0 < end; p0 += NB_VALUES) {
        const uint32_t p1 = p0 + NB_VALUES < end ? p0 + NB_VALUES : end;
#define NB_WEIGH(tile, queries) nb_run_weigh_all(r, tile, kv, type, p0, p1, queries)
        NB_RUN_TILES(r, NB_WEIGH)
    }
}

#endif
