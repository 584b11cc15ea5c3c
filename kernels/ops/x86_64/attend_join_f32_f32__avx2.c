/* SPDX-License-Identifier: Apache-2.0
 * Joins the ranges of one head, AVX2: eight channels at a time through eight ranges at a time, whose weights come from
 * one exp; with more ranges the sums so far wait in y. Channels past the last multiple of 8 go one by one. */
#include "ops/x86_64/avx2.h"

nb_attend_join_fn nb_attend_join_f32_f32__avx2;
void nb_attend_join_f32_f32__avx2(float *y, uint32_t head_dim, uint32_t n, const float *max, const float *sum, const float *out,
                                  size_t stride) {
    float top = max[0], total = 0;
    for (uint32_t r = 1; r < n; r++) top = max[r] > top ? max[r] : top;
    for (uint32_t c = 0; c < head_dim; c++) y[c] = 0;
    for (uint32_t r0 = 0; r0 < n; r0 += 8, out += 8 * stride) {
        const uint32_t count = n - r0 < 8 ? n - r0 : 8;
        float weight[8];
        for (uint32_t r = 0; r < 8; r++) weight[r] = max[r < count ? r0 + r : r0] - top;
        _mm256_storeu_ps(weight, nb_exp8(_mm256_loadu_ps(weight)));
        for (uint32_t r = 0; r < count; r++) total += sum[r0 + r] * weight[r];
        uint32_t c = 0;
        for (; c + 8 <= head_dim; c += 8) {
            __m256 acc = _mm256_loadu_ps(y + c);
            for (uint32_t r = 0; r < count; r++)
                acc = _mm256_add_ps(acc, _mm256_mul_ps(_mm256_loadu_ps(out + r * stride + c), _mm256_set1_ps(weight[r])));
            _mm256_storeu_ps(y + c, acc);
        }
        for (; c < head_dim; c++)
            for (uint32_t r = 0; r < count; r++) y[c] += out[r * stride + c] * weight[r];
    }
    const float inverse = 1.0f / total;
    uint32_t c = 0;
    for (; c + 8 <= head_dim; c += 8) _mm256_storeu_ps(y + c, _mm256_mul_ps(_mm256_loadu_ps(y + c), _mm256_set1_ps(inverse)));
    for (; c < head_dim; c++) y[c] = y[c] * inverse;
}
