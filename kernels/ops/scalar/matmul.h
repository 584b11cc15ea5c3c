/* SPDX-License-Identifier: Apache-2.0
 * The matrix product for all three formats, the definition of the answer:
 *   y[t][r] = (sum over blocks b, in increasing b, of (float)I * scale[t][b]) * row_factor[r],  I exact in int32.
 * Reads layout p16x4 (hal.h). A block is decoded once and used for all tokens of a tile; `bits` and `group` are
 * constants where this is called, so each format gets its own code. */
#ifndef NB_OPS_MATMUL_H
#define NB_OPS_MATMUL_H

#include "ops/scalar/math.h"

/* v[k][r] = value of (row r, k) */
static inline void nb_block_values(int8_t v[NB_BLOCK][NB_PANEL], const uint8_t *codes, const int8_t *table, int bits) {
    for (int j = 0; j < (bits == 4 ? 4 : 8); j++)
        for (int r = 0; r < NB_PANEL; r++)
            for (int i = 0; i < 4; i++) {
                const uint8_t code = codes[(j * NB_PANEL + r) * 4 + i];
                if (bits == 4) {
                    v[4 * j + i][r] = table[code & 15];
                    v[16 + 4 * j + i][r] = table[code >> 4];
                } else {
                    v[4 * j + i][r] = (int8_t)code;
                }
            }
}

/* fl(f16 row_scale * row_mul) of the row at `row` of a panel */
static inline float nb_row_factor(const struct nb_mat *w, const uint8_t *panel, int row) {
    uint16_t half;
    memcpy(&half, panel + 2 * row, sizeof half);
    return nb_from_f16(half) * w->row_mul;
}

static inline __attribute__((always_inline)) void nb_matmul(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                            uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1,
                                                            int bits, int group) {
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = w->data + p * w->panel_stride;
        const uint8_t *group_scale = panel + 2 * NB_PANEL, *codes = panel + w->code_offset;
        for (uint32_t tile = tile0; tile < tile1; tile++) {
            const uint32_t left = a->tokens - tile * a->tile, tokens = left < a->tile ? left : a->tile;
            float acc[NB_TILE][NB_PANEL] = {{0}};
            for (uint32_t b = 0; b < w->blocks; b++) {
                int8_t v[NB_BLOCK][NB_PANEL];
                nb_block_values(v, codes + (size_t)b * (bits == 4 ? 256 : 512), w->table, bits);
                const uint8_t *low = group_scale + (size_t)(group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
                /* The last group of 16 may have no columns and no scale: then this reads codes, and the sum is 0. */
                const uint8_t *high = group == 16 ? low + NB_PANEL : low;
                const size_t e = ((size_t)tile * w->blocks + b) * a->tile;
                for (uint32_t t = 0; t < tokens; t++) {
                    const int8_t *q = a->q + (e + t) * NB_BLOCK;
                    int32_t sum[2][NB_PANEL] = {{0}};
                    for (int k = 0; k < NB_BLOCK; k++)
                        for (int r = 0; r < NB_PANEL; r++) sum[k / 16][r] += v[k][r] * q[k];
                    for (int r = 0; r < NB_PANEL; r++)
                        acc[t][r] += (float)(sum[0][r] * low[r] + sum[1][r] * high[r]) * a->scale[e + t];
                }
            }
            for (uint32_t t = 0; t < tokens; t++)
                for (int r = 0; r < NB_PANEL; r++)
                    y[((size_t)tile * a->tile + t) * ldy + (size_t)p * NB_PANEL + (size_t)r] =
                        acc[t][r] * nb_row_factor(w, panel, r);
        }
    }
}

#endif
