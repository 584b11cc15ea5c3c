/* SPDX-License-Identifier: Apache-2.0
 * What attention over half-float and over int8 caches shares on SSE4.1: the softmax of one range, and the weighted sum of
 * values, where query heads that share a cache share its loads and conversions. */
#ifndef NB_OPS_ATTEND_SSE41_H
#define NB_OPS_ATTEND_SSE41_H

#include "ops/x86_64/sse41.h"

/* nb_exp_scores of softmax.h. The scratch holds NB_RANGE floats, so whole vectors past the last score stay inside. */
NB_INLINE float nb_exp_scores4(float *scores, uint32_t p0, uint32_t p1, float cap, float *sum) {
    const uint32_t n = p1 - p0;
    if (cap != 0)
        for (uint32_t i = 0; i < n; i += 4) _mm_storeu_ps(scores + i, nb_softcap4(_mm_loadu_ps(scores + i), cap));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = scores[0];
    __m128 top = _mm_loadu_ps(scores);
    for (uint32_t i = 4; i < n; i += 4) top = _mm_max_ps(top, _mm_loadu_ps(scores + i));
    const float max = nb_max4(top) + 0.0f; /* +0 even if only zeros of both signs were there */
    for (uint32_t i = 0; i < n; i += 4)
        _mm_storeu_ps(scores + i, nb_exp4(_mm_sub_ps(_mm_loadu_ps(scores + i), _mm_set1_ps(max))));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = 0;
    if (p0 % NB_LANES == 0) {
        __m128 lane[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
        for (uint32_t i = 0; i < n; i += NB_LANES) {
            NB_UNROLL
            for (int j = 0; j < 4; j++) lane[j] = _mm_add_ps(lane[j], _mm_loadu_ps(scores + i + 4 * j));
        }
        *sum = nb_fold16(lane);
    } else {
        float lane[NB_LANES] = {0};
        for (uint32_t i = 0; i < n; i++) lane[(p0 + i) % NB_LANES] += scores[i];
        *sum = nb_fold(lane);
    }
    return max;
}

/* Eight values of a cache from element i on */
NB_INLINE void nb_values4x2(__m128 to[2], const void *v, size_t i, uint32_t type) {
    if (type == NB_KV_F16) {
        nb_halves4x2(to, (const uint16_t *)v + i);
        return;
    }
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)((const int8_t *)v + i));
    to[0] = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(bytes));
    to[1] = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_srli_si128(bytes, 4)));
}

/* out[h][c .. c + 8 eights) = sum over the n positions, in increasing order, of weight[h][p] * v[p][c]; v: first position */
NB_INLINE void nb_weigh_tile(float *out, const float *weight, const void *v, uint32_t n, uint32_t head_dim, uint32_t type,
                             int heads, int eights) {
    __m128 acc[4][8];
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int i = 0; i < 2 * eights; i++) acc[h][i] = _mm_setzero_ps();
    }
    for (uint32_t p = 0; p < n; p++) {
        __m128 e[4];
        NB_UNROLL
        for (int h = 0; h < heads; h++) e[h] = _mm_set1_ps(weight[h * NB_RANGE + (int)p]);
        NB_UNROLL
        for (int i = 0; i < eights; i++) {
            __m128 x[2];
            nb_values4x2(x, v, (size_t)p * head_dim + 8 * (size_t)i, type);
            NB_UNROLL
            for (int h = 0; h < heads; h++) {
                acc[h][2 * i] = _mm_add_ps(acc[h][2 * i], _mm_mul_ps(e[h], x[0]));
                acc[h][2 * i + 1] = _mm_add_ps(acc[h][2 * i + 1], _mm_mul_ps(e[h], x[1]));
            }
        }
    }
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int i = 0; i < 2 * eights; i++) _mm_storeu_ps(out + (size_t)h * head_dim + 4 * i, acc[h][i]);
    }
}

/* All channels of `heads` heads (constant, 1 to 4); tiles of eight accumulators as far as they go. */
NB_INLINE void nb_weigh(float *out, const float *weight, const void *v, uint32_t n, uint32_t head_dim, uint32_t type, int heads) {
    const uint32_t eights = heads == 1 ? 4 : heads == 2 ? 2 : 1, size = type == NB_KV_F16 ? 2 : 1;
    uint32_t c = 0;
    for (; c + 8 * eights <= head_dim; c += 8 * eights)
        nb_weigh_tile(out + c, weight, (const uint8_t *)v + c * size, n, head_dim, type, heads, (int)eights);
    for (; c < head_dim; c += 8) nb_weigh_tile(out + c, weight, (const uint8_t *)v + c * size, n, head_dim, type, heads, 1);
}

/* Four heads go together as long as there are four; their number has to be a constant for the accumulators to be registers.
 * The body of an nb_attend_fn, with its parameters' names: attend(q, kv, p0, p1, scale, cap, scores, max, sum, out, heads). */
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
