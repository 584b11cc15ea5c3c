/* SPDX-License-Identifier: Apache-2.0
 * Cosines and sines of rotary position embedding, our own so that every machine gets the same bits. */
#ifndef NB_ROPE_H
#define NB_ROPE_H

#include <stdint.h>

/* cos[i], sin[i] of fl32(position * inv_freq[i]) for i < n, each within 1 float ulp. */
void nb_rope_row(float *cos, float *sin, uint32_t position, const float *inv_freq, uint32_t n);

#endif
