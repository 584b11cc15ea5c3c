/* SPDX-License-Identifier: Apache-2.0
 * y = gelu(gate) * up, with the exp of math.h. */
#include "ops/scalar/math.h"

nb_gated_fn nb_gelu_mul_f32_f32_f32__scalar;
void nb_gelu_mul_f32_f32_f32__scalar(float *y, const float *gate, const float *up, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) y[i] = nb_gelu(gate[i]) * up[i];
}
