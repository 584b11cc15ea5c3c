/* SPDX-License-Identifier: Apache-2.0
 * y = x / sqrt(mean(x * x) + eps) * w, AVX-512: the 16 virtual lanes are one register. A masked tail adds +0 to the
 * other lanes, which changes no bit of a sum of squares. */
#include <math.h>

#include "ops/x86_64/avx512.h"

nb_rmsnorm_fn nb_rmsnorm_f32_f32_f32__avx512vnni;
void nb_rmsnorm_f32_f32_f32__avx512vnni(float *y, const float *x, const float *w, uint32_t n, float eps) {
    __m512 lanes = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += NB_LANES) {
        const __m512 v = _mm512_maskz_loadu_ps(nb_first16(n - i), x + i);
        lanes = _mm512_add_ps(lanes, _mm512_mul_ps(v, v));
    }
    const __m512 inv = _mm512_set1_ps(1.0f / sqrtf(nb_fold16(lanes) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += NB_LANES) {
        const __mmask16 some = nb_first16(n - i);
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + i), inv);
        _mm512_mask_storeu_ps(y + i, some, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(some, w + i)));
    }
}
