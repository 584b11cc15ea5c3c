/* SPDX-License-Identifier: Apache-2.0
 * Joins the ranges of one head, AVX-512: sixteen channels at a time through all ranges; the weights of up to 16 ranges
 * come from one exp. Longer lists of ranges go 16 at a time, with the sums so far in y. */
#include "ops/x86_64/avx512.h"

nb_attend_join_fn nb_attend_join_f32_f32__avx512vnni;
void nb_attend_join_f32_f32__avx512vnni(float *y, uint32_t head_dim, uint32_t n, const float *max, const float *sum,
                                        const float *out, size_t stride) {
    float top = max[0], total = 0;
    for (uint32_t r = 1; r < n; r++) top = max[r] > top ? max[r] : top;
    for (uint32_t r0 = 0; r0 < n; r0 += 16) {
        const uint32_t count = n - r0 < 16 ? n - r0 : 16;
        float weight[16];
        _mm512_storeu_ps(weight,
                         nb_exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(nb_first16(count), max + r0), _mm512_set1_ps(top))));
        for (uint32_t r = 0; r < count; r++) total += sum[r0 + r] * weight[r];
        const __m512 inverse = _mm512_set1_ps(1.0f / total);
        for (uint32_t c = 0; c < head_dim; c += 16) {
            const __mmask16 some = nb_first16(head_dim - c);
            __m512 acc = r0 ? _mm512_maskz_loadu_ps(some, y + c) : _mm512_setzero_ps();
            for (uint32_t r = 0; r < count; r++)
                acc = _mm512_add_ps(
                    acc, _mm512_mul_ps(_mm512_maskz_loadu_ps(some, out + (r0 + r) * stride + c), _mm512_set1_ps(weight[r])));
            if (r0 + count == n) acc = _mm512_mul_ps(acc, inverse);
            _mm512_mask_storeu_ps(y + c, some, acc);
        }
    }
}
