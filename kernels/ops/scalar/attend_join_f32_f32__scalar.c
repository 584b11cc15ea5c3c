/* SPDX-License-Identifier: Apache-2.0
 * Joins the ranges of one head: y = sum of out * e^(max - M), divided by the sum of sums weighted alike. */
#include "ops/scalar/math.h"

nb_attend_join_fn nb_attend_join_f32_f32__scalar;
void nb_attend_join_f32_f32__scalar(float *y, uint32_t head_dim, uint32_t n, const float *max, const float *sum, const float *out,
                                    size_t stride) {
    float top = max[0], total = 0;
    for (uint32_t r = 1; r < n; r++) top = max[r] > top ? max[r] : top;
    for (uint32_t c = 0; c < head_dim; c++) y[c] = 0;
    for (uint32_t r = 0; r < n; r++) {
        const float weight = nb_exp(max[r] - top);
        total += sum[r] * weight;
        for (uint32_t c = 0; c < head_dim; c++) y[c] += out[r * stride + c] * weight;
    }
    const float inverse = 1.0f / total;
    for (uint32_t c = 0; c < head_dim; c++) y[c] = y[c] * inverse;
}
