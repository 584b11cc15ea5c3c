/* SPDX-License-Identifier: Apache-2.0
 * What attention over half-float and over int8 caches shares on AVX2: four dot products folded at once, the softmax of
 * one range, and the weighted sum of values, where query heads that share a cache share its loads and conversions. */
#ifndef NB_OPS_ATTEND_AVX2_H
#define NB_OPS_ATTEND_AVX2_H

#include "ops/x86_64/attend_heads.h"
#include "ops/x86_64/avx2.h"

/* nb_fold of four times 16 lanes: acc[d][0] lanes 0..7, acc[d][1] lanes 8..15. */
NB_INLINE __m128 nb_fold4(const __m256 acc[4][2]) {
    __m128 four[4];
    NB_UNROLL
    for (int d = 0; d < 4; d++) {
        const __m256 eight = _mm256_add_ps(acc[d][0], acc[d][1]);
        four[d] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(four[2], four[3]), _mm_movehl_ps(four[3], four[2]));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

/* nb_exp_scores of softmax.h. The scratch holds NB_RANGE floats, so whole vectors past the last score stay inside. */
NB_INLINE float nb_exp_scores8(float *scores, uint32_t p0, uint32_t p1, float cap, float *sum) {
    const uint32_t n = p1 - p0;
    if (cap != 0)
        for (uint32_t i = 0; i < n; i += 8) _mm256_storeu_ps(scores + i, nb_softcap8(_mm256_loadu_ps(scores + i), cap));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = scores[0];
    __m256 top = _mm256_loadu_ps(scores);
    for (uint32_t i = 8; i < n; i += 8) top = _mm256_max_ps(top, _mm256_loadu_ps(scores + i));
    const float max = nb_max8(top) + 0.0f; /* +0 even if only zeros of both signs were there */
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(scores + i, nb_exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(max))));
    for (uint32_t i = n; i % NB_LANES; i++) scores[i] = 0;
    if (p0 % NB_LANES == 0) {
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
        for (uint32_t i = 0; i < n; i += NB_LANES) {
            low = _mm256_add_ps(low, _mm256_loadu_ps(scores + i));
            high = _mm256_add_ps(high, _mm256_loadu_ps(scores + i + 8));
        }
        *sum = nb_fold16(low, high);
    } else {
        float lane[NB_LANES] = {0};
        for (uint32_t i = 0; i < n; i++) lane[(p0 + i) % NB_LANES] += scores[i];
        *sum = nb_fold(lane);
    }
    return max;
}

/* Eight values of a cache from element i on */
NB_INLINE __m256 nb_values8(const void *v, size_t i, uint32_t type) {
    if (type == NB_KV_F16) return nb_halves8((const uint16_t *)v + i);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)((const int8_t *)v + i))));
}

/* out[h][c .. c + 8 vectors) = sum over the n positions, in increasing order, of weight[h][p] * v[p][c]; v: first position */
NB_INLINE void nb_weigh_tile(float *out, const float *weight, const void *v, uint32_t n, uint32_t head_dim, uint32_t type,
                             int heads, int vectors) {
    __m256 acc[4][8];
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) acc[h][i] = _mm256_setzero_ps();
    }
    for (uint32_t p = 0; p < n; p++) {
        __m256 e[4];
        NB_UNROLL
        for (int h = 0; h < heads; h++) e[h] = _mm256_set1_ps(weight[h * NB_RANGE + (int)p]);
        NB_UNROLL
        for (int i = 0; i < vectors; i++) {
            const __m256 x = nb_values8(v, (size_t)p * head_dim + 8 * (size_t)i, type);
            NB_UNROLL
            for (int h = 0; h < heads; h++) acc[h][i] = _mm256_add_ps(acc[h][i], _mm256_mul_ps(e[h], x));
        }
    }
    NB_UNROLL
    for (int h = 0; h < heads; h++) {
        NB_UNROLL
        for (int i = 0; i < vectors; i++) _mm256_storeu_ps(out + (size_t)h * head_dim + 8 * i, acc[h][i]);
    }
}

/* All channels of `heads` heads (constant, 1 to 4); tiles of eight accumulators as far as they go. */
NB_INLINE void nb_weigh(float *out, const float *weight, const void *v, uint32_t n, uint32_t head_dim, uint32_t type, int heads) {
    const uint32_t vectors = heads == 1 ? 8 : heads == 2 ? 4 : 2, size = type == NB_KV_F16 ? 2 : 1;
    uint32_t c = 0;
    for (; c + 8 * vectors <= head_dim; c += 8 * vectors)
        nb_weigh_tile(out + c, weight, (const uint8_t *)v + c * size, n, head_dim, type, heads, (int)vectors);
    for (; c < head_dim; c += 8) nb_weigh_tile(out + c, weight, (const uint8_t *)v + c * size, n, head_dim, type, heads, 1);
}

#endif
