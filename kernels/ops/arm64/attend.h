/* SPDX-License-Identifier: Apache-2.0
 * What attention over half-float and over int8 caches shares on 64-bit Arm. Queries (heads of a token, and tokens) go four
 * at a time: the positions that all four see they meet together, so that a key or value is loaded and converted once; what
 * only some see, at either end of the range, each meets alone. */
#ifndef NB_OPS_ARM64_ATTEND_H
#define NB_OPS_ARM64_ATTEND_H

#include "ops/arm64/neon.h"

/* Up to four queries */
struct nb_four {
    const float *q[4];
    float *scores[4], *out[4]; /* scores[d][i]: position from[d] + i */
    float q_scale[4];          /* of queries quantized to int8 */
    uint32_t from[4], to[4];
    uint32_t low, high; /* all of them see [low, high), which may be empty */
    size_t at;          /* of the first among all */
};

/* Queries [at, at + n) */
NB_INLINE void nb_four_of(struct nb_four *f, const struct nb_kv *kv, const struct nb_attention *a, size_t at, size_t n) {
    for (size_t d = 0; d < n; d++) {
        const size_t t = (at + d) / a->heads, h = (at + d) % a->heads;
        f->q[d] = a->q + t * a->ldq + h * kv->head_dim;
        f->out[d] = a->out + t * a->ldo + h * kv->head_dim;
        f->scores[d] = a->scores + (at + d) * NB_RANGE;
        f->q_scale[d] = 0;
        f->from[d] = a->from[t];
        f->to[d] = a->to[t];
    }
    f->at = at;
    f->high = f->to[0];
    f->low = f->from[n - 1] < f->high ? f->from[n - 1] : f->high;
}

/* Query d alone */
NB_INLINE struct nb_four nb_one_of(const struct nb_four *f, int d) {
    return (struct nb_four){
        .q = {f->q[d]}, .scores = {f->scores[d]}, .out = {f->out[d]}, .q_scale = {f->q_scale[d]}, .from = {f->from[d]}};
}

/* Positions [low, high) for `queries` queries (constant, 1 to 4) */
typedef void nb_positions_fn(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, uint32_t low,
                             uint32_t high, int queries);

/* All positions of all queries, for each query in increasing order; alone: the same step for one query, not inlined */
NB_INLINE void nb_all_positions(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, int queries,
                                nb_positions_fn *step, nb_positions_fn *alone) {
    if (queries == 1) {
        alone(kv, a, f, f->low, f->high, 1);
        return;
    }
    struct nb_four one;
    for (int d = 0; d < queries; d++)
        if (f->from[d] < f->low) one = nb_one_of(f, d), alone(kv, a, &one, f->from[d], f->low, 1);
    if (f->low < f->high) step(kv, a, f, f->low, f->high, queries);
    for (int d = 0; d < queries; d++) {
        const uint32_t low = f->from[d] > f->high ? f->from[d] : f->high;
        if (low < f->to[d]) one = nb_one_of(f, d), alone(kv, a, &one, low, f->to[d], 1);
    }
}

/* The step for one query, once in the file */
#define NB_ALONE(name, step)                                                                                                     \
    static __attribute__((noinline)) void name(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f,    \
                                               uint32_t low, uint32_t high, int queries) {                                       \
        (void)queries;                                                                                                           \
        step(kv, a, f, low, high, 1);                                                                                            \
    }

/* Four dot products of 16 lanes each, folded */
NB_INLINE float32x4_t nb_fold4(float32x4_t acc[4][4]) {
    float64x2_t four[4];
    NB_UNROLL
    for (int d = 0; d < 4; d++) four[d] = vreinterpretq_f64_f32(nb_fold_to4(acc[d]));
    const float32x4_t ab =
        vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(four[0], four[1])), vreinterpretq_f32_f64(vzip2q_f64(four[0], four[1])));
    const float32x4_t cd =
        vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(four[2], four[3])), vreinterpretq_f32_f64(vzip2q_f64(four[2], four[3])));
    return vpaddq_f32(ab, cd);
}

/* nb_exp_scores of softmax.h. The scratch holds NB_RANGE floats, so whole vectors past the last score stay inside. Lane i of
 * the sums here is lane (p0 + i) % 16 there; the fold adds lanes 8, 4, 2 and 1 apart, so turning them in a circle changes
 * nothing. */
NB_INLINE float nb_exp_scores4(float *scores, uint32_t p0, uint32_t p1, float cap, float *sum) {
    const uint32_t n = p1 - p0;
    if (cap != 0)
        for (uint32_t i = 0; i < n; i += 4) vst1q_f32(scores + i, nb_softcap4(vld1q_f32(scores + i), cap));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = scores[0];
    float32x4_t top = vld1q_f32(scores);
    for (uint32_t i = 4; i < n; i += 4) top = vmaxq_f32(top, vld1q_f32(scores + i));
    const float max = vmaxvq_f32(top) + 0.0f; /* +0 even if only zeros of both signs were there */
    for (uint32_t i = 0; i < n; i += 4) vst1q_f32(scores + i, nb_exp4(vsubq_f32(vld1q_f32(scores + i), vdupq_n_f32(max))));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = 0;
    float32x4_t lanes[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (uint32_t i = 0; i < n; i += NB_LANES) {
        NB_UNROLL
        for (uint32_t v = 0; v < 4; v++) lanes[v] = vaddq_f32(lanes[v], vld1q_f32(scores + i + 4 * v));
    }
    const float32x4_t four = nb_fold_to4(lanes);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    *sum = vget_lane_f32(vpadd_f32(two, two), 0);
    return max;
}

/* Scores of all queries become weights. */
static inline void nb_exp_four(const struct nb_attention *a, const struct nb_four *f, int queries) {
    for (int d = 0; d < queries; d++)
        a->max[f->at + (size_t)d] = nb_exp_scores4(f->scores[d], f->from[d], f->to[d], a->cap, &a->sum[f->at + (size_t)d]);
}

/* The body of an nb_attend_fn, with its parameters' names: attend(kv, a, four, queries) for four queries as long as there
 * are four, then the rest; their number has to be a constant for accumulators to be registers. */
#define NB_ATTEND_BY_FOUR(attend)                                                                                                \
    for (size_t i = 0, all = (size_t)a->tokens * a->heads; i < all; i += 4) {                                                    \
        const size_t n = all - i < 4 ? all - i : 4;                                                                              \
        struct nb_four f;                                                                                                        \
        nb_four_of(&f, kv, a, i, n);                                                                                             \
        switch (n) {                                                                                                             \
        case 1: attend(kv, a, &f, 1); break;                                                                                     \
        case 2: attend(kv, a, &f, 2); break;                                                                                     \
        case 3: attend(kv, a, &f, 3); break;                                                                                     \
        default: attend(kv, a, &f, 4); break;                                                                                    \
        }                                                                                                                        \
    }

#endif
