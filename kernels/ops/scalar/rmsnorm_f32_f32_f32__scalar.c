/* SPDX-License-Identifier: Apache-2.0
 * y = x / sqrt(mean(x * x) + eps) * w; the sum runs in 16 virtual lanes so that every vector width can do it alike. */
#include "ops/scalar/math.h"

#include <math.h>

nb_rmsnorm_fn nb_rmsnorm_f32_f32_f32__scalar;
void nb_rmsnorm_f32_f32_f32__scalar(float *y, const float *x, const float *w, uint32_t n, float eps) {
    float lane[NB_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % NB_LANES] += x[i] * x[i];
    const float inv = 1.0f / sqrtf(nb_fold(lane) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}
