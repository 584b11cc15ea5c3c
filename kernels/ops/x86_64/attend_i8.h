/* SPDX-License-Identifier: Apache-2.0
 * Attention to int8 keys and values for the vectors of attend_run.h and the level's integers. Scores are exact, in any order of
 * channels: keys are turned NB_CHANNELS channels (a dword) at a time and meet the query's dwords in all lanes. The quantized
 * query lies where the output will be, its scale in sum[].
 * Needs: head_dim a multiple of 8 and of NB_WIDTH up to NB_DEEPEST. */
#ifndef NB_OPS_ATTEND_I8_H
#define NB_OPS_ATTEND_I8_H

#include "ops/x86_64/attend_values.h"

/* One query as dwords, and its scale */
NB_INLINE float nb_take_query(float *to, const float *q, uint32_t head_dim);
/* keys[dword][first + position] of the NB_WIDTH positions row */
NB_INLINE void nb_turn(int32_t (*keys)[NB_KEYS], const int8_t *const *row, uint32_t first, uint32_t head_dim);

/* Scores of a tile for the NB_KEYS positions from p on; k_scale: of the range's positions */
NB_INLINE void nb_dots(const struct nb_run *r, uint32_t tile, const int32_t (*keys)[NB_KEYS], const float *k_scale,
                       uint32_t head_dim, uint32_t p, const int8_t *ahead, int queries) {
    nb_ivec acc[NB_TOGETHER][2];
    const float *q[NB_TOGETHER];
    if (r->from[tile] >= p + NB_KEYS || r->to[tile + (uint32_t)queries - 1] <= p) return;
    NB_UNROLL
    for (int t = 0; t < queries; t++) {
        q[t] = r->out[tile + (uint32_t)t];
        acc[t][0] = acc[t][1] = nb_i_start(q[t], head_dim);
    }
    if (!tile)
        for (uint32_t i = 0; i < NB_KEYS * head_dim; i += 64) nb_v_fetch(ahead + i);
    for (uint32_t i = 0; i < head_dim / NB_CHANNELS; i++) {
        const nb_ivec k[2] = {nb_i_load(keys[i]), nb_i_load(keys[i] + NB_WIDTH)};
        NB_UNROLL
        for (int t = 0; t < queries; t++) {
            const nb_ivec x = nb_i_all(q[t] + i);
            NB_UNROLL
            for (int v = 0; v < 2; v++) acc[t][v] = nb_i_dot(acc[t][v], k[v], x);
        }
    }
    NB_UNROLL
    for (int t = 0; t < queries; t++) {
        const uint32_t at = tile + (uint32_t)t;
        NB_UNROLL
        for (uint32_t v = 0; v < 2; v++) {
            const uint32_t first = p + v * NB_WIDTH;
            const nb_vec scale = nb_v_mul(nb_v_mul(nb_v_all(r->sum[at]), nb_v_load(k_scale + first)), nb_v_all(r->scale));
            nb_v_store(r->scores[at] + first, nb_v_mul(nb_i_float(acc[t][v]), scale));
        }
    }
}

static void nb_attend_run(const struct nb_run *r, const struct nb_kv *kv) {
    _Alignas(64) int32_t keys[NB_DEEPEST / NB_CHANNELS][NB_KEYS];
    float scale[NB_RANGE];
    const uint32_t head_dim = kv->head_dim, begin = r->from[0], end = r->to[r->n - 1];
    for (uint32_t i = 0; i < r->n; i++) r->sum[i] = nb_take_query(r->out[i], r->q[i], head_dim);
    memset(scale, 0, sizeof scale);
    memcpy(scale + begin, kv->k_scale + r->base + begin, (end - begin) * sizeof *scale);
    for (uint32_t p = begin / NB_KEYS * NB_KEYS; p < end; p += NB_KEYS) {
        const int8_t *row[NB_KEYS];
        for (uint32_t i = 0; i < NB_KEYS; i++) /* positions that nobody sees repeat one that somebody does */
            row[i] = (const int8_t *)kv->k + (size_t)(r->base + (p + i < begin ? begin
                                                                 : p + i < end ? p + i
                                                                               : end - 1)) *
                                                 head_dim;
        nb_turn(keys, row, 0, head_dim);
        nb_turn(keys, row + NB_WIDTH, NB_WIDTH, head_dim);
#define NB_DOTS(tile, queries) nb_dots(r, tile, keys, scale, head_dim, p, row[0] + NB_KEYS * head_dim, queries)
        NB_RUN_TILES(r, NB_DOTS)
    }
    memcpy(scale + begin, kv->v_scale + r->base + begin, (end - begin) * sizeof *scale);
    for (uint32_t i = 0; i < r->n; i++) {
        float *e = r->scores[i];
        nb_run_exp(r, i);
        for (uint32_t p = r->from[i] / NB_LANES * NB_LANES; p < r->to[i]; p += NB_WIDTH)
            nb_v_store(e + p, nb_v_mul(nb_v_load(e + p), nb_v_load(scale + p)));
    }
    nb_run_weigh(r, kv, NB_KV_I8);
}

/* An nb_attend_fn */
NB_INLINE void nb_attend_i8(const struct nb_kv *kv, const struct nb_attention *a) {
    struct nb_run r;
    for (uint32_t i = 0; i < a->tokens * a->heads; i += NB_WHOLE_RUN) {
        nb_run_take(&r, a, kv->head_dim, i);
        nb_attend_run(&r, kv);
    }
}

#endif
