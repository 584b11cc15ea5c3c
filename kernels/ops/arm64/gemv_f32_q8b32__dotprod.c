/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, SDOT, all formats: y[r] = row_factor * sum over blocks of (float)I * scale.
 * A register of layout p16x4 is 4 rows x 4 k and SDOT by element takes the four activations of those k from one lane:
 * 16 products an instruction, signed, and no shuffle. A panel's four groups of rows are four chains of each kind.
 * On paper per block of 16 rows x 32 k = 512 products, with pairs of registers loaded as one:
 *   q4g32s8: 8 ldp, 32 and/ushr, 32 tbl, 32 sdot, 5 (load and widen scales), 1 ldp (q), 4 movi, 4 x (mul scvtf fmul fadd),
 *            1 ldr (scale), 4 prfm, 5 (count, branch, pointers) = 140 instructions per 512
 *   q4g16s8: each half of the block has its sums and scales: 4 more tbl, movi, mla each = 152 instructions per 512
 *   q8g32s8: no decoding, 16 ldp, 8 prfm: 140 - 64 + 8 + 4 = 88 instructions per 512
 * The integer group scale multiplies the int32 sum: with one scale a block, widening it by TBL costs less than a float.
 * One token is bound by memory: prefetch runs 2 KiB ahead, past the panel's end into the next panel.
 * Needs: a->tile == 1. */
#include "ops/arm64/dotprod.h"

enum { AHEAD = 2048 };

NB_INLINE void gemv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const int8x16_t table = vld1q_s8(w->table);
    const size_t bytes = bits == 4 ? 256 : 512, blocks = w->blocks;
    const int registers = bits == 4 ? 4 : 8; /* of codes a group of four rows */
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
                const int8x16_t q0 = vld1q_s8(q), q1 = vld1q_s8(q + 16);
                int32x4_t sum[2][4];
                NB_UNROLL
                for (int g = 0; g < 4; g++) sum[0][g] = sum[1][g] = vdupq_n_s32(0);
                int32x4_t *high = group == 16 ? sum[1] : sum[0];
                NB_UNROLL
                for (int j = 0; j < registers; j++) {
                    NB_UNROLL
                    for (int g = 0; g < 4; g++) {
                        const uint8x16_t c = vld1q_u8(codes + 64 * j + 16 * g);
                        if (bits == 8) {
                            sum[0][g] = nb_dot4(sum[0][g], vreinterpretq_s8_u8(c), j < 4 ? q0 : q1, j % 4);
                        } else {
                            sum[0][g] = nb_dot4(sum[0][g], nb_low16(table, c), q0, j);
                            high[g] = nb_dot4(high[g], nb_high16(table, c), q1, j);
                        }
                    }
                }
                const uint8x16_t s0 = vld1q_u8(scales), s1 = group == 16 ? vld1q_u8(scales + NB_PANEL) : s0;
                const float scale = a->scale[t * blocks + b];
                NB_UNROLL
                for (uint32_t g = 0; g < 4; g++) {
                    int32x4_t i = vmulq_s32(sum[0][g], nb_scales4(s0, g));
                    if (group == 16) i = vmlaq_s32(i, sum[1][g], nb_scales4(s1, g));
                    acc[g] = vaddq_f32(acc[g], vmulq_n_f32(vcvtq_f32_s32(i), scale));
                }
            }
            NB_UNROLL
            for (int g = 0; g < 4; g++)
                vst1q_f32(y + t * ldy + p * NB_PANEL + 4 * g, vmulq_f32(acc[g], nb_row_factors4(w, panel, g)));
        }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__dotprod;
void nb_gemv_f32_q8b32_q4g16s8p16x4__dotprod(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__dotprod;
void nb_gemv_f32_q8b32_q4g32s8p16x4__dotprod(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__dotprod;
void nb_gemv_f32_q8b32_q8g32s8p16x4__dotprod(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
