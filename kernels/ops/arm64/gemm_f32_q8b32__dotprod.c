/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, SDOT, all formats; the walk is that of ops/arm64/gemm.h, the product that of the GEMV.
 * Tile: 8 rows x 2 tokens, while 16 registers hold 8 rows x 32 k of values and 64 tokens pass.
 * On paper per two tokens, 512 products, with pairs of registers loaded and stored as one:
 *   q4g32s8: 2 ldp (q), 4 movi, 32 sdot, 4 x (scvtf fmul fmul fadd), 2 ldp and 2 stp (sums), 1 ldp (scales), 4 (count, branch,
 *            pointers) = 63 instructions per 512
 *   q4g16s8: each half of the block has its sums: 4 movi, 4 mla more, mul for fmul = 71 instructions per 512
 *   q8g32s8: the same as q4g32s8 = 63 instructions per 512
 * Decoding adds 36 for 32 pairs of tokens. The other way, 8 rows x 4 tokens with sums in registers and values loaded, comes to
 * the same (64 sdot, 12 ldp, 8 movi, 32 for scaling, 2 for scales, 4 = 122 per 1024).
 * Needs: a->tile == NB_TILE with zeros for missing tokens. */
#include "ops/arm64/dotprod.h"

#include "ops/arm64/gemm.h"

NB_INLINE void arrange(int8_t *q_to, float *scale_to, const int8_t *q, const float *scale, size_t tokens) {
    memcpy(q_to, q, tokens * NB_BLOCK);
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
    const int8_t *q = h->q;
    float *sums = h->sums;
    for (size_t t = 0; t < h->tokens; t += 2, q += 2 * NB_BLOCK, sums += 16) {
        NB_UNROLL
        for (int k = 0; k < 2; k++) {
            const int8x16_t q0 = vld1q_s8(q + NB_BLOCK * k), q1 = vld1q_s8(q + NB_BLOCK * k + 16);
            NB_UNROLL
            for (int i = 0; i < 2; i++) {
                int32x4_t sum = vdupq_n_s32(0), rest = vdupq_n_s32(0);
                NB_UNROLL
                for (int j = 0; j < 4; j++) sum = nb_dot4(sum, v[j][i], q0, j);
                if (group == 16) {
                    NB_UNROLL
                    for (int j = 0; j < 4; j++) rest = nb_dot4(rest, v[4 + j][i], q1, j);
                } else {
                    NB_UNROLL
                    for (int j = 0; j < 4; j++) sum = nb_dot4(sum, v[4 + j][i], q1, j);
                }
                const float32x4_t x = group == 16 ? vcvtq_f32_s32(vmlaq_s32(vmulq_s32(sum, low[i]), rest, high[i]))
                                                  : nb_scaled4(sum, group_scale[i]);
                float *at = sums + 8 * k + 4 * i;
                vst1q_f32(at, vaddq_f32(vld1q_f32(at), vmulq_n_f32(x, h->scale[t + (size_t)k])));
            }
        }
    }
}

static const struct nb_gemm_level level = {
    .bytes = NB_BLOCK, .floats = 1, .arrange = arrange, .half = half, .sums = nb_sums_by_token};

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__dotprod;
void nb_gemm_f32_q8b32_q4g16s8p16x4__dotprod(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16, &level);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__dotprod;
void nb_gemm_f32_q8b32_q4g32s8p16x4__dotprod(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32, &level);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__dotprod;
void nb_gemm_f32_q8b32_q8g32s8p16x4__dotprod(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32, &level);
}
