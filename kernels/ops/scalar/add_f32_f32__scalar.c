/* SPDX-License-Identifier: Apache-2.0
 * y += x: the residual stream. Any compiler turns this loop into full vectors of its level, so no level has its own. */
#include "ops/scalar/math.h"

nb_add_fn nb_add_f32_f32__scalar;
void nb_add_f32_f32__scalar(float *y, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) y[i] += x[i];
}
