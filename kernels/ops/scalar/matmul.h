/* SPDX-License-Identifier: Apache-2.0
 * The matrix product for all formats, the definition of the answer:
 *   y[t][r] = (sum over blocks b, in increasing b, of (float)I * scale[t][b]) * row_factor[r],  I exact in int32,
 *   I = sum over the 32 k of a block of value[r][k] * q[k], each group of k times its scale.
 * Reads layout p16x4 (hal.h). How I comes about is in lanes.h: for one token from the codes as they lie, for a tile from a
 * block that is decoded once. `bits`, `group` and `size` (of a tile) are constants where this is called: each format gets its
 * own code. */
#ifndef NB_OPS_MATMUL_H
#define NB_OPS_MATMUL_H

#include "ops/scalar/lanes.h"

/* fl(f16 row_scale * row_mul) of the row at `row` of a panel */
static inline float nb_row_factor(const struct nb_mat *w, const uint8_t *panel, int row) {
    uint16_t half;
    memcpy(&half, panel + 2 * row, sizeof half);
    return nb_from_f16(half) * w->row_mul;
}

/* v[r][k] = value of (row r, k) */
static inline void nb_block_values(int8_t v[NB_PANEL][NB_BLOCK], const uint8_t *codes, const int8_t *table, int bits) {
    for (int j = 0; j < (bits == 4 ? 4 : 8); j++)
        for (int r = 0; r < NB_PANEL; r++)
            for (int i = 0; i < 4; i++) {
                const uint8_t code = codes[(j * NB_PANEL + r) * 4 + i];
                v[r][4 * j + i] = bits == 4 ? table[code & 15] : (int8_t)code;
                if (bits == 4) v[r][16 + 4 * j + i] = table[code >> 4];
            }
}

/* A block as words: [row][half of k][word] */
static inline void nb_block_words(uint64_t words[NB_PANEL][2][NB_WORDS], const uint8_t *codes, const int8_t *table, int bits) {
    int8_t v[NB_PANEL][NB_BLOCK];
    nb_block_values(v, codes, table, bits);
    for (int r = 0; r < NB_PANEL; r++)
        for (int half = 0; half < 2; half++) nb_words(words[r][half], v[r] + 16 * half, 0);
}

static inline __attribute__((always_inline)) void nb_matmul(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                            uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1,
                                                            int bits, int group, uint32_t size) {
    uint64_t pair[256], words[NB_PANEL][2][NB_WORDS];
    if (bits == 4 && size == 1) nb_pair_table(pair, w->table);
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = w->data + p * w->panel_stride;
        for (uint32_t tile = tile0; tile < tile1; tile++) {
            const uint32_t left = a->tokens - tile * size, tokens = left < size ? left : size;
            float acc[NB_TILE][NB_PANEL] = {{0}};
            for (uint32_t b = 0; b < w->blocks; b++) {
                const uint8_t *codes = panel + w->code_offset + (size_t)b * (bits == 4 ? 256 : 512);
                const uint8_t *low = panel + 2 * NB_PANEL + (size_t)(group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
                /* The last group of 16 may have no columns and no scale: then this reads codes, and the sum is 0. */
                const uint8_t *high = group == 16 ? low + NB_PANEL : low;
                if (size > 1) nb_block_words(words, codes, w->table, bits);
                for (uint32_t t = 0; t < tokens; t++) {
                    const size_t e = ((size_t)tile * w->blocks + b) * size + t;
                    const int8_t *q = a->q + e * NB_BLOCK;
                    int32_t sum[NB_PANEL];
                    if (size > 1) nb_sums_of_words(sum, words, q, low, high, group);
                    else if (bits == 4) nb_sums4(sum, codes, pair, q, low, high, group);
                    else nb_sums8(sum, codes, q, a->bias[e], low);
                    for (int r = 0; r < NB_PANEL; r++) acc[t][r] += (float)sum[r] * a->scale[e];
                }
            }
            for (uint32_t t = 0; t < tokens; t++)
                for (int r = 0; r < NB_PANEL; r++)
                    y[((size_t)tile * size + t) * ldy + (size_t)p * NB_PANEL + (size_t)r] =
                        acc[t][r] * nb_row_factor(w, panel, r);
        }
    }
}

#endif
