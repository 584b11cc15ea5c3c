/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of half-float keys and values, NEON (contract in hal.h).
 * A dot product is four registers of lanes. Up to four queries go together with one key, which is converted (FCVTL) once for
 * all; one query goes with four keys. 16 chains of additions hide each other's latency.
 * On paper per 16 channels of four queries: 1 ldp, 4 fcvtl (key), 8 ldp (queries), 16 fmul, 16 fadd, 7 (five pointers, compare,
 * branch) = 52 instructions per 64 products.
 * Needs: head_dim a multiple of 8 (else the scalar kernel runs). */
#include "ops/arm64/attend_values.h"

/* acc[dot][lanes] += 4 * lanes channels from i on, k: first key; dot = query * keys + key */
NB_INLINE void add_channels(float32x4_t acc[4][4], const struct nb_four *f, const uint16_t *k, uint32_t head_dim, uint32_t i,
                            int queries, int keys, int lanes) {
    NB_UNROLL
    for (int p = 0; p < keys; p++) {
        float32x4_t key[4];
        NB_UNROLL
        for (int v = 0; v < lanes; v++) key[v] = nb_halves4(k + (size_t)p * head_dim + i + 4 * v);
        NB_UNROLL
        for (int d = 0; d < queries; d++) {
            NB_UNROLL
            for (int v = 0; v < lanes; v++)
                acc[d * keys + p][v] = vaddq_f32(acc[d * keys + p][v], vmulq_f32(vld1q_f32(f->q[d] + i + 4 * v), key[v]));
        }
    }
}

/* Scores of keys [p, p + keys); queries, keys: constants, queries * keys <= 4 */
NB_INLINE void dots(const struct nb_four *f, const struct nb_kv *kv, uint32_t p, float scale, int queries, int keys) {
    const uint16_t *k = (const uint16_t *)kv->k + (size_t)p * kv->head_dim;
    float32x4_t acc[4][4];
    NB_UNROLL
    for (int d = 0; d < 4; d++) acc[d][0] = acc[d][1] = acc[d][2] = acc[d][3] = vdupq_n_f32(0);
    uint32_t i = 0;
    for (; i + NB_LANES <= kv->head_dim; i += NB_LANES) add_channels(acc, f, k, kv->head_dim, i, queries, keys, 4);
    if (i < kv->head_dim) add_channels(acc, f, k, kv->head_dim, i, queries, keys, 2); /* eight are left: lanes 0..7 */
    const float32x4_t four = vmulq_n_f32(nb_fold4(acc), scale);
    NB_UNROLL
    for (int d = 0; d < queries; d++) {
        NB_UNROLL
        for (int n = 0; n < keys; n++) f->scores[d][p - f->from[d] + (uint32_t)n] = four[d * keys + n];
    }
}

NB_INLINE void scores(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, uint32_t low, uint32_t high,
                      int queries) {
    const uint32_t keys = queries == 1 ? 4 : 1;
    uint32_t p = low;
    for (; p + keys <= high; p += keys) dots(f, kv, p, a->scale, queries, (int)keys);
    for (; p < high; p++) dots(f, kv, p, a->scale, queries, 1);
}

NB_INLINE void weigh(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, uint32_t low, uint32_t high,
                     int queries) {
    (void)a;
    nb_weigh(kv, f, low, high, NB_KV_F16, queries);
}

NB_ALONE(scores_alone, scores)
NB_ALONE(weigh_alone, weigh)

NB_INLINE void attend(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, int queries) {
    nb_all_positions(kv, a, f, queries, scores, scores_alone);
    nb_exp_four(a, f, queries);
    for (int d = 0; d < queries; d++) memset(f->out[d], 0, kv->head_dim * sizeof(float));
    nb_all_positions(kv, a, f, queries, weigh, weigh_alone);
}

nb_attend_fn nb_attend_f32_f32_f16__scalar, nb_attend_f32_f32_f16__neon;
void nb_attend_f32_f32_f16__neon(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8) {
        nb_attend_f32_f32_f16__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
