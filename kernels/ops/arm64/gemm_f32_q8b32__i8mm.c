/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, SMMLA (Neoverse V1, Cortex-A510, X2 and later), all formats; the walk is that of
 * ops/arm64/gemm.h. SMMLA takes 2 tokens x 8 k and 2 rows x 8 k and adds 2 x 2 sums of eight products, 32 an instruction. ZIP
 * of two neighbouring registers of layout p16x4 (4 rows x 4 k) makes its 2 rows x 8 k; tokens are arranged in pairs.
 * Tile: 8 rows x 2 tokens, while 16 registers hold 8 rows x 32 k of values and 64 tokens pass. Sums, scales of tokens and
 * group scales all wait as 2 x 2.
 * On paper per two tokens, 512 products, with pairs of registers loaded and stored as one:
 *   q4g32s8: 2 ldp (q), 4 movi, 16 smmla, 4 x (scvtf fmul fmul fadd), 2 ldp and 2 stp (sums), 1 ldr (scales), 4 (count,
 *            branch, pointers) = 47 instructions per 512
 *   q4g16s8: each half of the block has its sums: 4 movi, 4 mla more, mul for fmul = 55 instructions per 512
 *   q8g32s8: the same as q4g32s8 = 47 instructions per 512
 * Decoding adds 52 for 32 pairs of tokens. The other way, 8 rows x 4 tokens with sums in registers and values loaded, comes to
 * the same (32 smmla, 12 ldp, 8 movi, 32 for scaling, 3 for scales, 4 = 91 per 1024).
 * Needs: a->tile == NB_TILE with zeros for missing tokens. */
#include "ops/arm64/i8mm.h"

#include "ops/arm64/gemm.h"

/* Per pair of tokens 64 bytes, [k / 8][token][k % 8], and the scales as s0 s0 s1 s1; tokens: even */
NB_INLINE void arrange(int8_t *q_to, float *scale_to, const int8_t *q, const float *scale, size_t tokens) {
    for (size_t t = 0; t < tokens; t += 2) {
        NB_UNROLL
        for (size_t i = 0; i < 2; i++) {
            const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(q + NB_BLOCK * t + 16 * i)),
                            b = vreinterpretq_s64_s8(vld1q_s8(q + NB_BLOCK * (t + 1) + 16 * i));
            vst1q_s8(q_to + NB_BLOCK * t + 32 * i, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
            vst1q_s8(q_to + NB_BLOCK * t + 32 * i + 16, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
        }
        vst1q_f32(scale_to + 2 * t, vcombine_f32(vdup_n_f32(scale[t]), vdup_n_f32(scale[t + 1])));
    }
}

/* v[s][r]: k 8s..8s+7 of rows 2r, 2r+1 */
NB_INLINE void row_pairs(int8x16_t v[4][4], const struct nb_half *h, int bits) {
    int8x16_t quads[8][2];
    nb_half_values(quads, h, bits);
    NB_UNROLL
    for (int s = 0; s < 4; s++) {
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            const int32x4_t a = vreinterpretq_s32_s8(quads[2 * s][i]), b = vreinterpretq_s32_s8(quads[2 * s + 1][i]);
            v[s][2 * i] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
            v[s][2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
        }
    }
}

/* Eight group scales, as g0 g1 g0 g1 for each pair of rows */
NB_INLINE void pair_scales(int32x4_t to[4], const uint8_t *scales) {
    int32x4_t four[2];
    nb_half_scales(four, scales);
    NB_UNROLL
    for (int i = 0; i < 2; i++) {
        const int64x2_t both = vreinterpretq_s64_s32(four[i]);
        to[2 * i] = vreinterpretq_s32_s64(vdupq_laneq_s64(both, 0));
        to[2 * i + 1] = vreinterpretq_s32_s64(vdupq_laneq_s64(both, 1));
    }
}

NB_INLINE void half(const struct nb_half *h, int bits, int group) {
    int8x16_t v[4][4];
    int32x4_t low[4], high[4];
    float32x4_t group_scale[4];
    row_pairs(v, h, bits);
    pair_scales(low, h->low);
    pair_scales(high, h->high);
    for (int r = 0; r < 4; r++) group_scale[r] = vcvtq_f32_s32(low[r]);
    const int8_t *q = h->q;
    const float *scale = h->scale;
    float *sums = h->sums;
    for (size_t t = 0; t < h->tokens; t += 2, q += 2 * NB_BLOCK, scale += 4, sums += 16) {
        int32x4_t sum[2][4]; /* half of the block, pair of rows */
        NB_UNROLL
        for (int r = 0; r < 4; r++) sum[0][r] = sum[1][r] = vdupq_n_s32(0);
        NB_UNROLL
        for (int s = 0; s < 4; s++) {
            const int8x16_t pair = vld1q_s8(q + 16 * s);
            int32x4_t *to = sum[group == 16 && s >= 2];
            NB_UNROLL
            for (int r = 0; r < 4; r++) to[r] = vmmlaq_s32(to[r], pair, v[s][r]);
        }
        const float32x4_t scales = vld1q_f32(scale);
        NB_UNROLL
        for (int r = 0; r < 4; r++) {
            const float32x4_t x = group == 16 ? vcvtq_f32_s32(vmlaq_s32(vmulq_s32(sum[0][r], low[r]), sum[1][r], high[r]))
                                              : nb_scaled4(sum[0][r], group_scale[r]);
            vst1q_f32(sums + 4 * r, vaddq_f32(vld1q_f32(sums + 4 * r), vmulq_f32(x, scales)));
        }
    }
}

/* Token t is one half of each of its pair's 2 x 2 sums */
NB_INLINE float32x4_t sums_of(const float *sums, size_t token, int g) {
    const float *at = sums + 16 * (token / 2) + 8 * g + 2 * (token % 2);
    return vcombine_f32(vld1_f32(at), vld1_f32(at + 4));
}

static const struct nb_gemm_level level = {.bytes = NB_BLOCK, .floats = 2, .arrange = arrange, .half = half, .sums = sums_of};

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__i8mm;
void nb_gemm_f32_q8b32_q4g16s8p16x4__i8mm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16, &level);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__i8mm;
void nb_gemm_f32_q8b32_q4g32s8p16x4__i8mm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32, &level);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__i8mm;
void nb_gemm_f32_q8b32_q8g32s8p16x4__i8mm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_gemm_walk(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32, &level);
}
