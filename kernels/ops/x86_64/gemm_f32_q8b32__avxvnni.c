/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, AVX-VNNI, all formats; the arithmetic of gemv_f32_q8b32__avxvnni.c.
 * A strip of panels is unpacked for a few blocks of k at a time into L1 (20 KB), as unsigned bytes beside its group scales,
 * and all tiles pass over it; y itself keeps the float sums between two runs of blocks.
 * Inner tile: 16 rows x 4 tokens, eight int32 sums in registers; the eight float sums are needed once a block and may wait in
 * memory. Groups of 16: x 2 tokens, as the two halves of a block have their own sums. Per block of 16 x 4: 64 vpdpbusd, 16 loads
 * of weights, 32 broadcasts of activations, 8 for the starts, 38 for the float sums and their factors, some 8 more for spills
 * and the loop: 166 instructions for 2,048 multiply-adds. On cores with two pipes for vpdpbusd, multiply and convert, 88 / 2
 * = 44 cycles, 73 % of the int8 peak; loads, two a cycle, take 35. Groups of 16: twice (32 vpdpbusd, 8 vpmulld of two each,
 * 4 multiplies, 4 converts), 56 cycles, 57 %. Counted, not measured.
 * Needs: a->tile == NB_TILE with zeros for missing tokens, values -64..63. */
#include "ops/x86_64/avxvnni.h"

enum { STRIP = 4, RUN = 8 }; /* panels, blocks */

/* Eight rows of one block: 320 bytes. */
struct half {
    _Alignas(32) uint8_t u[8][32]; /* quad of k, row, k: value + 64, or + 128 at 8 bits */
    uint32_t scale[2][8];          /* group scales of k 0..15 and of k 16..31 as int32, or one as float and nothing */
};

NB_INLINE void unpack(struct half *to, const struct nb_mat *w, const uint8_t *panel, size_t b, int half, int bits, int group) {
    const uint8_t *codes = panel + w->code_offset + b * (bits == 4 ? 256 : 512) + 32 * (size_t)half;
    const uint8_t *scales = panel + 2 * NB_PANEL + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL + 8 * half;
    const __m256i table = nb_table8(w), low = nb_groups8(scales);
    nb_store8(to->scale[0], group == 16 ? low : _mm256_castps_si256(_mm256_cvtepi32_ps(low)));
    if (group == 16) nb_store8(to->scale[1], nb_groups8(scales + NB_PANEL));
    NB_UNROLL
    for (int j = 0; j < 8; j++) nb_store8(to->u[j], nb_unsigned8(codes, j, table, bits));
}

/* What the sums of one token and block start at: for the whole block, or for each half of it */
struct start {
    int32_t part[2];
};

NB_INLINE void find_starts(struct start *to, const struct nb_act *a, size_t e, size_t blocks, int bits, int group) {
    for (size_t i = 0; i < blocks * NB_TILE; i++) {
        const int32_t bias = a->bias[e + i];
        to[i].part[0] = bits == 8 ? 2 * bias : bias;
        if (group == 16) {
            const int32_t first = _mm_cvtsi128_si32(_mm256_castsi256_si128(nb_sums8(a->q + (e + i) * NB_BLOCK)));
            to[i].part[0] = -first;
            to[i].part[1] = bias + first;
        }
    }
}

/* `blocks` blocks of 16 rows times 4 tokens (2 for groups of 16), added to y. q, scale and start point at the first block's
 * entry of the first token; blocks lie NB_TILE entries apart. */
NB_INLINE void inner(float *const y[4], const struct half *h, const int8_t *q, const float *scale, const struct start *start,
                     size_t blocks, int first, int group) {
    const int tokens = group == 16 ? 2 : 4, parts = group == 16 ? 2 : 1;
    __m256 total[4][2];
    NB_UNROLL
    for (int t = 0; t < tokens; t++) {
        NB_UNROLL
        for (int i = 0; i < 2; i++) total[t][i] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y[t] + 8 * i);
    }
    for (size_t b = 0; b < blocks; b++, h += 2, q += NB_TILE * NB_BLOCK, scale += NB_TILE, start += NB_TILE) {
        __m256i sum[4][2][2]; /* token, half of the panel, part of the block */
        NB_UNROLL
        for (int t = 0; t < tokens; t++) {
            NB_UNROLL
            for (int part = 0; part < parts; part++) sum[t][0][part] = sum[t][1][part] = nb_dword8(&start[t].part[part]);
        }
        NB_UNROLL
        for (int j = 0; j < 8; j++) {
            const int part = group == 16 ? j / 4 : 0;
            const __m256i u0 = nb_load8(h[0].u[j]), u1 = nb_load8(h[1].u[j]);
            NB_UNROLL
            for (int t = 0; t < tokens; t++) {
                const __m256i s = nb_dword8(q + t * NB_BLOCK + 4 * j);
                sum[t][0][part] = nb_dot8(sum[t][0][part], u0, s);
                sum[t][1][part] = nb_dot8(sum[t][1][part], u1, s);
            }
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            const __m256i low = nb_load8(h[i].scale[0]);
            NB_UNROLL
            for (int t = 0; t < tokens; t++) {
                __m256 x;
                if (group == 16)
                    x = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_mullo_epi32(sum[t][i][0], low),
                                                            _mm256_mullo_epi32(sum[t][i][1], nb_load8(h[i].scale[1]))));
                else x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[t][i][0]), _mm256_castsi256_ps(low));
                total[t][i] = _mm256_add_ps(total[t][i], _mm256_mul_ps(x, _mm256_set1_ps(scale[t])));
            }
        }
    }
    NB_UNROLL
    for (int t = 0; t < tokens; t++) {
        NB_UNROLL
        for (int i = 0; i < 2; i++) _mm256_storeu_ps(y[t] + 8 * i, total[t][i]);
    }
}

NB_INLINE void gemm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const size_t step = group == 16 ? 2 : 4;
    struct half halves[STRIP][RUN][2];
    struct start starts[RUN * NB_TILE];
    float spare[4][NB_PANEL] = {{0}}; /* where the sums of tokens past the last go */
    for (size_t p0 = panel0; p0 < panel1; p0 += STRIP) {
        const size_t strip = panel1 - p0 < STRIP ? panel1 - p0 : STRIP;
        for (size_t b0 = 0; b0 < w->blocks; b0 += RUN) {
            const size_t run = w->blocks - b0 < RUN ? w->blocks - b0 : RUN;
            for (size_t p = 0; p < strip; p++)
                for (size_t b = 0; b < run; b++)
                    for (int half = 0; half < 2; half++)
                        unpack(&halves[p][b][half], w, w->data + (p0 + p) * w->panel_stride, b0 + b, half, bits, group);
            for (size_t tile = tile0; tile < tile1; tile++) {
                const size_t e = (tile * w->blocks + b0) * NB_TILE, t0 = tile * NB_TILE;
                find_starts(starts, a, e, run, bits, group);
                for (size_t p = 0; p < strip; p++)
                    for (size_t t = 0; t < NB_TILE && t0 + t < a->tokens; t += step) {
                        float *rows[4];
                        for (size_t k = 0; k < step; k++)
                            rows[k] = t0 + t + k < a->tokens ? y + (t0 + t + k) * ldy + (p0 + p) * NB_PANEL : spare[k];
                        inner(rows, halves[p][0], a->q + (e + t) * NB_BLOCK, a->scale + e + t, starts + t, run, b0 == 0, group);
                    }
            }
        }
        for (size_t t = (size_t)tile0 * NB_TILE; t < a->tokens && t < (size_t)tile1 * NB_TILE; t++)
            for (size_t i = 0; i < 2 * strip; i++) {
                const uint8_t *row_scale = w->data + (p0 + i / 2) * w->panel_stride + 16 * (i % 2);
                float *at = y + t * ldy + p0 * NB_PANEL + 8 * i;
                const __m256 factor = _mm256_mul_ps(nb_halves8(row_scale), _mm256_set1_ps(w->row_mul));
                _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), factor));
            }
    }
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__avxvnni;
void nb_gemm_f32_q8b32_q4g16s8p16x4__avxvnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__avxvnni;
void nb_gemm_f32_q8b32_q4g32s8p16x4__avxvnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__avxvnni;
void nb_gemm_f32_q8b32_q8g32s8p16x4__avxvnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
