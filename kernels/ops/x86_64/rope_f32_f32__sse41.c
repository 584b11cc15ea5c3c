/* SPDX-License-Identifier: Apache-2.0
 * Rotates the pairs (i, i + rot/2) of each head, SSE4.1, four pairs at a time. */
#include "ops/x86_64/sse41.h"

nb_rope_fn nb_rope_f32_f32__sse41;
void nb_rope_f32_f32__sse41(float *x, uint32_t heads, uint32_t head_dim, uint32_t rot, const float *cos, const float *sin) {
    const uint32_t half = rot / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        uint32_t i = 0;
        for (; i + 4 <= half; i += 4) {
            const __m128 c = _mm_loadu_ps(cos + i), s = _mm_loadu_ps(sin + i);
            const __m128 x1 = _mm_loadu_ps(x + i), x2 = _mm_loadu_ps(x + half + i);
            _mm_storeu_ps(x + i, _mm_sub_ps(_mm_mul_ps(x1, c), _mm_mul_ps(x2, s)));
            _mm_storeu_ps(x + half + i, _mm_add_ps(_mm_mul_ps(x2, c), _mm_mul_ps(x1, s)));
        }
        for (; i < half; i++) {
            const float x1 = x[i], x2 = x[i + half];
            x[i] = x1 * cos[i] - x2 * sin[i];
            x[i + half] = x2 * cos[i] + x1 * sin[i];
        }
    }
}
