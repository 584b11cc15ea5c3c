/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens on 64-bit Arm: the walk that all levels share. Sixteen of the 32 registers hold eight rows
 * of a block decoded, and all tokens of up to four tiles pass by. The float sum of a (row, token) waits in memory meanwhile:
 * that is a load and a store per four of them and block, no more than loading the values again for other tokens would be.
 * Activations are arranged once for a strip of panels, a run of blocks at a time, so that they stay in L1 beside the sums. */
#ifndef NB_OPS_ARM64_GEMM_H
#define NB_OPS_ARM64_GEMM_H

#include "ops/arm64/neon.h"

enum { NB_STRIP = 8, NB_STRIP_TOKENS = 4 * NB_TILE, NB_ARRANGED = 16 << 10 }; /* panels, tokens, bytes */

/* Eight rows of one block and the tokens that meet them */
struct nb_half {
    const uint8_t *codes; /* of the eight rows: 32 bytes of every 64 */
    const uint8_t *low;   /* (8) group scales of k 0..15 */
    const uint8_t *high;  /* (8) of k 16..31, the same for groups of 32 and more */
    const int8_t *table;  /* (16) */
    const int8_t *q;      /* arranged activations */
    const float *scale;   /* arranged scales */
    float *sums;          /* (tokens, 8) in the order of the level */
    size_t tokens;        /* even */
};

/* What a level brings; all constants where the walk is called */
struct nb_gemm_level {
    uint32_t bytes, floats; /* of a token's arranged block and scale */
    void (*arrange)(int8_t *q_to, float *scale_to, const int8_t *q, const float *scale, size_t tokens);
    void (*half)(const struct nb_half *h, int bits, int group);
    float32x4_t (*sums)(const float *sums, size_t token, int g); /* rows 4g..4g+3 */
};

/* One strip of panels [p0, p0 + panels) times tokens [t0, t0 + tokens), t0 a multiple of NB_TILE */
NB_INLINE void nb_gemm_strip(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, size_t p0, size_t panels,
                             size_t t0, size_t tokens, int bits, int group, const struct nb_gemm_level *level) {
    _Alignas(64) float sums[NB_STRIP][2][NB_STRIP_TOKENS * 8];
    _Alignas(64) int8_t q[NB_ARRANGED];
    _Alignas(64) float scale[NB_ARRANGED / NB_BLOCK * 2];
    const size_t run = NB_ARRANGED / (NB_STRIP_TOKENS * level->bytes), even = tokens + tokens % 2, blocks = w->blocks,
                 bytes = bits == 4 ? 256 : 512;
    memset(sums, 0, panels * sizeof *sums);
    for (size_t b0 = 0; b0 < blocks; b0 += run) {
        const size_t count = blocks - b0 < run ? blocks - b0 : run;
        for (size_t i = 0; i < count; i++)
            for (size_t t = 0; t < even; t += NB_TILE) {
                const size_t e = ((t0 + t) / NB_TILE * blocks + b0 + i) * NB_TILE, at = i * NB_STRIP_TOKENS + t;
                level->arrange(q + at * level->bytes, scale + at * level->floats, a->q + e * NB_BLOCK, a->scale + e,
                               even - t < NB_TILE ? even - t : NB_TILE);
            }
        for (size_t p = 0; p < panels; p++)
            for (size_t h = 0; h < 2; h++)
                for (size_t i = 0; i < count; i++) {
                    const uint8_t *panel = w->data + (p0 + p) * w->panel_stride;
                    const uint8_t *codes = panel + w->code_offset + (b0 + i) * bytes;
                    if (h == 0) /* the panel's next run, which this strip's other panels leave time for */
                        for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(codes + run * bytes + line);
                    const size_t b = b0 + i, g = group == 16 ? 2 * b : b >> w->group_shift;
                    const struct nb_half half = {.codes = codes + 32 * h,
                                                 .low = panel + 2 * NB_PANEL + g * NB_PANEL + 8 * h,
                                                 .high = panel + 2 * NB_PANEL + (g + (group == 16)) * NB_PANEL + 8 * h,
                                                 .table = w->table,
                                                 .q = q + i * NB_STRIP_TOKENS * level->bytes,
                                                 .scale = scale + i * NB_STRIP_TOKENS * level->floats,
                                                 .sums = sums[p][h],
                                                 .tokens = even};
                    level->half(&half, bits, group);
                }
    }
    for (size_t p = 0; p < panels; p++)
        for (int g = 0; g < 4; g++) {
            const float32x4_t factor = nb_row_factors4(w, w->data + (p0 + p) * w->panel_stride, g);
            float *to = y + t0 * ldy + (p0 + p) * NB_PANEL + 4 * g;
            for (size_t t = 0; t < tokens; t++) vst1q_f32(to + t * ldy, vmulq_f32(level->sums(sums[p][g / 2], t, g % 2), factor));
        }
}

NB_INLINE void nb_gemm_walk(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                            uint32_t panel1, uint32_t tile0, uint32_t tile1, int bits, int group,
                            const struct nb_gemm_level *level) {
    const size_t end = (size_t)tile1 * NB_TILE < a->tokens ? (size_t)tile1 * NB_TILE : a->tokens;
    for (size_t p = panel0; p < panel1; p += NB_STRIP)
        for (size_t t = (size_t)tile0 * NB_TILE; t < end; t += NB_STRIP_TOKENS)
            nb_gemm_strip(w, a, y, ldy, p, panel1 - p < NB_STRIP ? panel1 - p : NB_STRIP, t,
                          end - t < NB_STRIP_TOKENS ? end - t : NB_STRIP_TOKENS, bits, group, level);
}

/* Values of eight rows: v[j][i] is quad j of k, rows 4i..4i+3 */
NB_INLINE void nb_half_values(int8x16_t v[8][2], const struct nb_half *h, int bits) {
    const int8x16_t table = vld1q_s8(h->table);
    const int registers = bits == 4 ? 4 : 8;
    NB_UNROLL
    for (int j = 0; j < registers; j++) {
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            const uint8x16_t c = vld1q_u8(h->codes + 64 * j + 16 * i);
            v[j][i] = bits == 4 ? nb_low16(table, c) : vreinterpretq_s8_u8(c);
            if (bits == 4) v[4 + j][i] = nb_high16(table, c);
        }
    }
}

/* Eight group scales as dwords, rows 4i..4i+3 in to[i] */
NB_INLINE void nb_half_scales(int32x4_t to[2], const uint8_t *scales) {
    const uint16x8_t words = vmovl_u8(vld1_u8(scales));
    to[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
    to[1] = vreinterpretq_s32_u32(vmovl_high_u16(words));
}

/* fl(fl(I) * group_scale) where I and the scale are exact floats (below 2^24): the bits of (float)(I * group_scale) */
NB_INLINE float32x4_t nb_scaled4(int32x4_t sum, float32x4_t group_scale) { return vmulq_f32(vcvtq_f32_s32(sum), group_scale); }

/* Rows as they come: sums of levels whose registers are four rows of one token */
NB_INLINE float32x4_t nb_sums_by_token(const float *sums, size_t token, int g) { return vld1q_f32(sums + 8 * token + 4 * g); }

#endif
