/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, NEON of Armv8.0 (Cortex-A72, A53), all formats: y[r] = row_factor * sum of (float)I * scale.
 * SMULL and SMLAL make eight products of int8, summed in int16: four of values -64..63 fit (4 * 64 * 127 = 32,512), two of
 * 8 bits. A register of layout p16x4 is 4 rows x 4 k, so its two halves are two sums of two rows; SADALP adds neighbours
 * into int32, where k 16..31 joins k 0..15, and one ADDP makes four rows of them. Rows as lanes instead would need a DUP
 * for each activation and two widening additions for every four k: 128 instead of 92 instructions beside the decoding.
 * On paper per block of 16 rows x 32 k = 512 products, with pairs of registers loaded as one:
 *   q4g32s8: 8 ldp, 32 and/ushr, 32 tbl, 64 smull/smlal, 16 saddlp/sadalp, 4 addp, 9 (1 ldp, 8 dup of activations), 5 (load
 *            and widen scales), 4 x (mul scvtf fmul fadd), 1 ldr (scale), 4 prfm, 5 (count, branch, pointers)
 *            = 196 instructions per 512
 *   q4g16s8: each half of the block has its sums and scales: 4 more addp, tbl, mla each = 208 instructions per 512
 *   q8g32s8: no decoding, 16 ldp, 32 saddlp/sadalp, 8 prfm: 196 - 64 + 8 + 16 + 4 = 160 instructions per 512
 * The A72 has one multiplier for the 64 smull/smlal and 4 mul (72 cycles) and two pipes for all 176 vector instructions (88).
 * One token is bound by memory: prefetch runs 1 KiB ahead, past the panel's end into the next panel.
 * Needs: a->tile == 1, values of 4-bit formats -64..63. */
#include "ops/arm64/neon.h"

enum { AHEAD = 1024 };

/* I of rows 4g..4g+3; codes: of that group of rows, 64 bytes a quad of k; four: nb_repeat4 */
NB_INLINE int32x4_t group_sum(const uint8_t *codes, const int8x16_t four[8], int8x16_t table, uint8x16_t scales, uint8x16_t more,
                              uint32_t g, int bits, int group) {
    int16x8_t low[2], high[2];
    int32x4_t sum[2], rest[2];
    if (bits == 8) {
        NB_UNROLL
        for (int j = 0; j < 8; j++) {
            nb_add_products(low, vreinterpretq_s8_u8(vld1q_u8(codes + 64 * j)), four[j], j % 2 == 0);
            if (j % 2 == 0) continue;
            sum[0] = j == 1 ? vpaddlq_s16(low[0]) : vpadalq_s16(sum[0], low[0]);
            sum[1] = j == 1 ? vpaddlq_s16(low[1]) : vpadalq_s16(sum[1], low[1]);
        }
    } else {
        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            const uint8x16_t c = vld1q_u8(codes + 64 * j);
            nb_add_products(low, nb_low16(table, c), four[j], j == 0);
            nb_add_products(high, nb_high16(table, c), four[4 + j], j == 0);
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            sum[i] = vpaddlq_s16(low[i]);
            if (group == 16) rest[i] = vpaddlq_s16(high[i]);
            else sum[i] = vpadalq_s16(sum[i], high[i]);
        }
    }
    int32x4_t i = vmulq_s32(vpaddq_s32(sum[0], sum[1]), nb_scales4(scales, g));
    if (group == 16) i = vmlaq_s32(i, vpaddq_s32(rest[0], rest[1]), nb_scales4(more, g));
    return i;
}

NB_INLINE void gemv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const int8x16_t table = vld1q_s8(w->table);
    const size_t bytes = bits == 4 ? 256 : 512, blocks = w->blocks;
    for (size_t t = tile0; t < tile1; t++)
        for (size_t p = panel0; p < panel1; p++) {
            const uint8_t *panel = w->data + p * w->panel_stride, *codes = panel + w->code_offset;
            const uint8_t *group_scale = panel + 2 * NB_PANEL;
            const int8_t *q = a->q + t * blocks * NB_BLOCK;
            float32x4_t acc[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
            for (size_t line = 0; line < w->code_offset; line += 64) __builtin_prefetch(panel + AHEAD + line);
            for (size_t b = 0; b < blocks; b++, codes += bytes, q += NB_BLOCK) {
                NB_UNROLL
                for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(codes + AHEAD + line);
                const uint8_t *scales = group_scale + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
                const uint8x16_t s0 = vld1q_u8(scales), s1 = group == 16 ? vld1q_u8(scales + NB_PANEL) : s0;
                int8x16_t four[8];
                nb_repeat4(four, q);
                const float scale = a->scale[t * blocks + b];
                NB_UNROLL
                for (uint32_t g = 0; g < 4; g++) {
                    const int32x4_t i = group_sum(codes + 16 * g, four, table, s0, s1, g, bits, group);
                    acc[g] = vaddq_f32(acc[g], vmulq_n_f32(vcvtq_f32_s32(i), scale));
                }
            }
            NB_UNROLL
            for (int g = 0; g < 4; g++)
                vst1q_f32(y + t * ldy + p * NB_PANEL + 4 * g, vmulq_f32(acc[g], nb_row_factors4(w, panel, g)));
        }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__neon;
void nb_gemv_f32_q8b32_q4g16s8p16x4__neon(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__neon;
void nb_gemv_f32_q8b32_q4g32s8p16x4__neon(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__neon;
void nb_gemv_f32_q8b32_q8g32s8p16x4__neon(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
