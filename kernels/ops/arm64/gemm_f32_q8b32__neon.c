/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, NEON of Armv8.0 (Cortex-A72, A53), all formats; the walk is that of ops/arm64/gemm.h, the
 * product that of the GEMV. Each quad of activations is arranged in all four lanes, 128 bytes a token and block, because
 * SMULL has no form by element.
 * Tile: 8 rows x 1 token, while 16 registers hold 8 rows x 32 k of values and 64 tokens pass.
 * On paper per token, 256 products, with pairs of registers loaded and stored as one:
 *   q4g32s8: 4 ldp (q), 32 smull/smlal, 8 saddlp/sadalp, 2 addp, 2 x (scvtf fmul fmul fadd), 1 ldp and 1 stp (sums), 1 ldr
 *            (scale), 4 (count, branch, pointers) = 61 instructions per 256
 *   q4g16s8: each half of the block has its sums: 2 addp, 2 mla more, mul for fmul = 65 instructions per 256
 *   q8g32s8: 8 more sadalp, int16 holds two products = 69 instructions per 256
 * The A72's one multiplier does 32 of these in 32 cycles at best; the rest fits beside it, which is why the group scale is
 * a float and not one more multiplication there.
 * Needs: a->tile == NB_TILE with zeros for missing tokens, values of 4-bit formats -64..63. */
#include "ops/arm64/neon.h"

#include "ops/arm64/gemm.h"

NB_INLINE void arrange(int8_t *q_to, float *scale_to, const int8_t *q, const float *scale, size_t tokens) {
    for (size_t t = 0; t < tokens; t++) {
        int8x16_t four[8];
        nb_repeat4(four, q + NB_BLOCK * t);
        NB_UNROLL
        for (size_t j = 0; j < 8; j++) vst1q_s8(q_to + 128 * t + 16 * j, four[j]);
    }
    memcpy(scale_to, scale, tokens * sizeof *scale);
}

NB_INLINE void half(const struct nb_half *h, int bits, int group) {
    int8x16_t v[8][2];
    int32x4_t low[2], high[2];
    float32x4_t group_scale[2];
    nb_half_values(v, h, bits);
    nb_half_scales(low, h->low);
    nb_half_scales(high, h->high);
    for (int i = 0; i < 2; i++) group_scale[i] = vcvtq_f32_s32(low[i]);
    const int products = bits == 4 ? 4 : 2; /* that fit into int16 */
    const int8_t *q = h->q;
    float *sums = h->sums;
    for (size_t t = 0; t < h->tokens; t++, q += 128, sums += 8) {
        int32x4_t sum[2][2][2]; /* half of the block, rows 4i..4i+3, rows 0 1 or 2 3 of them */
        NB_UNROLL
        for (int j = 0; j < 8; j += products) {
            int16x8_t words[2][2];
            NB_UNROLL
            for (int k = 0; k < products; k++) {
                const int8x16_t a = vld1q_s8(q + 16 * (j + k));
                NB_UNROLL
                for (int i = 0; i < 2; i++) nb_add_products(words[i], v[j + k][i], a, k == 0);
            }
            NB_UNROLL
            for (int i = 0; i < 2; i++) {
                NB_UNROLL
                for (int r = 0; r < 2; r++) {
                    if (j == 0) sum[0][i][r] = vpaddlq_s16(words[i][r]);
                    else if (group == 16) sum[1][i][r] = vpaddlq_s16(words[i][r]);
                    else sum[0][i][r] = vpadalq_s16(sum[0][i][r], words[i][r]);
                }
            }
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            const int32x4_t all = vpaddq_s32(sum[0][i][0], sum[0][i][1]);
            float32x4_t x;
            if (group == 16)
                x = vcvtq_f32_s32(vmlaq_s32(vmulq_s32(all, low[i]), vpaddq_s32(sum[1][i][0], sum[1][i][1]), high[i]));
            else x = nb_scaled4(all, group_scale[i]);
            vst1q_f32(sums + 4 * i, vaddq_f32(vld1q_f32(sums + 4 * i), vmulq_n_f32(x, h->scale[t])));
        }
    }
}

static const struct nb_gemm_level level = {.bytes = 128, .floats = 1, .arrange = arrange, .half = half, .sums = nb_sums_by_token};

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__neon;
void nb_gemm_f32_q8b32_q4g16s8p16x4__neon(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16, &level);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__neon;
void nb_gemm_f32_q8b32_q4g32s8p16x4__neon(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32, &level);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__neon;
void nb_gemm_f32_q8b32_q8g32s8p16x4__neon(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32, &level);
}
