/* SPDX-License-Identifier: Apache-2.0
 * What attention over half-float and over int8 caches shares on AVX-512; the plan of attend_avx2.h with whole registers. */
#ifndef NB_OPS_ATTEND_AVX512_H
#define NB_OPS_ATTEND_AVX512_H

#include "ops/x86_64/attend_heads.h"
#include "ops/x86_64/avx512.h"

/* nb_exp_scores of softmax.h. The scratch holds NB_RANGE floats, so whole vectors past the last score stay inside. */
NB_INLINE float nb_exp_scores16(float *scores, uint32_t p0, uint32_t p1, float cap, float *sum) {
    const uint32_t n = p1 - p0;
    if (cap != 0)
        for (uint32_t i = 0; i < n; i += 16) _mm512_storeu_ps(scores + i, nb_softcap16(_mm512_loadu_ps(scores + i), cap));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = scores[0];
    __m512 top = _mm512_loadu_ps(scores);
    for (uint32_t i = 16; i < n; i += 16) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + i));
    const float max = nb_max16(top) + 0.0f; /* +0 even if only zeros of both signs were there */
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(scores + i, nb_exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(max))));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = 0;
    if (p0 % NB_LANES == 0) {
        __m512 lanes = _mm512_setzero_ps();
        for (uint32_t i = 0; i < n; i += 16) lanes = _mm512_add_ps(lanes, _mm512_loadu_ps(scores + i));
        *sum = nb_fold16(lanes);
    } else {
        float lane[NB_LANES] = {0};
        for (uint32_t i = 0; i < n; i++) lane[(p0 + i) % NB_LANES] += scores[i];
        *sum = nb_fold(lane);
    }
    return max;
}

/* Sixteen values of a cache from element i on */
NB_INLINE __m512 nb_values16(const void *v, size_t i, uint32_t type) {
    if (type == NB_KV_F16) return nb_halves16((const uint16_t *)v + i);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)((const int8_t *)v + i))));
}

/* out[h][c .. c + 16 vectors) = sum over the n positions, in increasing order, of weight[h][p] * v[p][c]; v: first position */
NB_INLINE void nb_weigh_tile(float *out, const float *weight, const void *v, uint32_t n, uint32_t head_dim, uint32_t type,
                             int heads, int vectors) {
    __m512 acc[4][8];
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) acc[h][i] = _mm512_setzero_ps();
    }
    for (uint32_t p = 0; p < n; p++) {
        __m512 e[4];
        NB_UNROLL
        for (int h = 0; h < heads; h++) e[h] = _mm512_set1_ps(weight[h * NB_RANGE + (int)p]);
        NB_UNROLL
        for (int i = 0; i < vectors; i++) {
            const __m512 x = nb_values16(v, (size_t)p * head_dim + 16 * (size_t)i, type);
            NB_UNROLL
            for (int h = 0; h < heads; h++) acc[h][i] = _mm512_add_ps(acc[h][i], _mm512_mul_ps(e[h], x));
        }
    }
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) _mm512_storeu_ps(out + (size_t)h * head_dim + 16 * i, acc[h][i]);
    }
}

/* All channels of `heads` heads (constant, 1 to 4); tiles of 8 to 16 accumulators as far as they go. */
NB_INLINE void nb_weigh(float *out, const float *weight, const void *v, uint32_t n, uint32_t head_dim, uint32_t type, int heads) {
    const uint32_t vectors = heads == 1 ? 8 : 4, size = type == NB_KV_F16 ? 2 : 1;
    uint32_t c = 0;
    for (; c + 16 * vectors <= head_dim; c += 16 * vectors)
        nb_weigh_tile(out + c, weight, (const uint8_t *)v + c * size, n, head_dim, type, heads, (int)vectors);
    for (; c < head_dim; c += 16) nb_weigh_tile(out + c, weight, (const uint8_t *)v + c * size, n, head_dim, type, heads, 1);
}

#endif
