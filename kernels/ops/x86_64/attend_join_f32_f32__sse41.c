/* SPDX-License-Identifier: Apache-2.0
 * Joins the ranges of one head, SSE4.1: four channels at a time through four ranges at a time, whose weights come from one
 * exp; with more ranges the sums so far wait in y. Channels past the last multiple of 4 go one by one. */
#include "ops/x86_64/sse41.h"

nb_attend_join_fn nb_attend_join_f32_f32__sse41;
void nb_attend_join_f32_f32__sse41(float *y, uint32_t head_dim, uint32_t n, const float *max, const float *sum, const float *out,
                                   size_t stride) {
    float top = max[0], total = 0;
    for (uint32_t r = 1; r < n; r++) top = max[r] > top ? max[r] : top;
    for (uint32_t c = 0; c < head_dim; c++) y[c] = 0;
    for (uint32_t r0 = 0; r0 < n; r0 += 4, out += 4 * stride) {
        const uint32_t count = n - r0 < 4 ? n - r0 : 4;
        float weight[4];
        for (uint32_t r = 0; r < 4; r++) weight[r] = max[r < count ? r0 + r : r0] - top;
        _mm_storeu_ps(weight, nb_exp4(_mm_loadu_ps(weight)));
        for (uint32_t r = 0; r < count; r++) total += sum[r0 + r] * weight[r];
        uint32_t c = 0;
        for (; c + 4 <= head_dim; c += 4) {
            __m128 acc = _mm_loadu_ps(y + c);
            for (uint32_t r = 0; r < count; r++)
                acc = _mm_add_ps(acc, _mm_mul_ps(_mm_loadu_ps(out + r * stride + c), _mm_set1_ps(weight[r])));
            _mm_storeu_ps(y + c, acc);
        }
        for (; c < head_dim; c++)
            for (uint32_t r = 0; r < count; r++) y[c] += out[r * stride + c] * weight[r];
    }
    const float inverse = 1.0f / total;
    uint32_t c = 0;
    for (; c + 4 <= head_dim; c += 4) _mm_storeu_ps(y + c, _mm_mul_ps(_mm_loadu_ps(y + c), _mm_set1_ps(inverse)));
    for (; c < head_dim; c++) y[c] = y[c] * inverse;
}
