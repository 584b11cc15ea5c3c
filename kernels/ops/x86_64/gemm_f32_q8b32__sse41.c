/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, SSE4.1, all formats; the arithmetic of gemv_f32_q8b32__sse41.c.
 * A strip of panels is unpacked for a few blocks of k at a time into L1 (22 KB at most), as unsigned bytes (signed at 8 bits)
 * beside its group scales, and all tiles pass over it; y itself keeps the float sums between two runs of blocks.
 * Inner tile: 16 rows x 1 token, four int32 and four float sums. More tokens would not save a load: SSE writes over its
 * first operand, so the load of weights is also the copy that a product needs. Per block and token: 32 steps of load,
 * pmaddubsw, pmaddwd, paddd (128), 8 spreads of a quad, 2 loads; 10 for the starts, 14 for the float sums, 5 for the loop:
 * 167 instructions for 512 multiply-adds, 0.33 each; at 8 bits 253, as each step also takes |w| and q with w's sign. A Nehalem
 * has one multiply a cycle: 72 cycles for the 72 of them, and the others fit in beside.
 * Needs: a->tile == NB_TILE, values -64..63. */
#include "ops/x86_64/sse41.h"

enum { STRIP = 4, RUN = 8 }; /* panels, blocks */

/* One block of a panel: 704 bytes. */
struct block {
    _Alignas(16) uint8_t u[8][4][16]; /* quad of k, 4 rows, row, k: value + 64, or the signed byte itself at 8 bits */
    int16_t pairs[2][4][8];           /* group scale of k 0..15 and of k 16..31, each twice a row */
    int16_t start[4][8];              /* both, times 64: meets the negative sums of activations */
};

NB_INLINE void unpack(struct block *to, const struct nb_mat *w, const uint8_t *panel, size_t b, int bits, int group) {
    const uint8_t *codes = panel + w->code_offset + b * (bits == 4 ? 256 : 512);
    const uint8_t *scales = panel + 2 * NB_PANEL + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
    const __m128i nibble = _mm_set1_epi8(15), table = nb_table4(w);
    __m128i low[4], high[4];
    nb_pairs4(low, scales);
    nb_pairs4(high, group == 16 ? scales + NB_PANEL : scales);
    for (int r = 0; r < 4; r++) {
        nb_store4(to->pairs[0][r], low[r]);
        nb_store4(to->pairs[1][r], high[r]);
        nb_store4(to->start[r], _mm_slli_epi16(_mm_blend_epi16(low[r], high[r], 0xaa), 6));
        for (int j = 0; j < (bits == 4 ? 4 : 8); j++) {
            const __m128i bytes = nb_load4(codes + 64 * j + 16 * r);
            if (bits == 8) {
                nb_store4(to->u[j][r], bytes);
                continue;
            }
            nb_store4(to->u[j][r], _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble)));
            nb_store4(to->u[4 + j][r], _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble)));
        }
    }
}

/* `blocks` blocks of 16 rows times 1 token, added to y. q, scale and minus point at the first block's entry of the token;
 * blocks lie NB_TILE entries apart. minus: -sum(q) as two int16 (nb_minus_sums4). */
NB_INLINE void inner(float *y, const struct block *w, const int8_t *q, const float *scale, const int32_t *minus, size_t blocks,
                     int first, int bits, int group) {
    __m128 total[4];
    NB_UNROLL
    for (int r = 0; r < 4; r++) total[r] = first ? _mm_setzero_ps() : _mm_loadu_ps(y + 4 * r);
    for (size_t b = 0; b < blocks; b++, w++, q += NB_TILE * NB_BLOCK, scale += NB_TILE, minus += NB_TILE) {
        __m128i sum[4];
        const __m128i m = bits == 4 ? _mm_set1_epi32(*minus) : _mm_setzero_si128();
        NB_UNROLL
        for (int r = 0; r < 4; r++) sum[r] = bits == 8 ? m : _mm_madd_epi16(m, nb_load4(w->start[r]));
        NB_UNROLL
        for (int j = 0; j < 8; j++) {
            const __m128i a = nb_quad4(nb_load4(q + j / 4 * 16), j % 4);
            NB_UNROLL
            for (int r = 0; r < 4; r++) {
                const __m128i u = nb_load4(w->u[j][r]), pairs = nb_load4(w->pairs[group == 16 ? j / 4 : 0][r]);
                sum[r] = bits == 8 ? nb_signed_step4(sum[r], u, a, pairs) : nb_step4(sum[r], u, a, pairs);
                NB_KEEP(sum[r]);
            }
        }
        const __m128 s = _mm_set1_ps(*scale);
        NB_UNROLL
        for (int r = 0; r < 4; r++) total[r] = _mm_add_ps(total[r], _mm_mul_ps(_mm_cvtepi32_ps(sum[r]), s));
    }
    NB_UNROLL
    for (int r = 0; r < 4; r++) _mm_storeu_ps(y + 4 * r, total[r]);
}

/* The negative sums of activations for one run of blocks of one tile. */
NB_INLINE void negative_sums(int32_t *minus, const struct nb_act *a, size_t e, size_t blocks, int group) {
    for (size_t i = 0; i < blocks * NB_TILE; i++)
        minus[i] = group == 16 ? nb_minus_sums4(a->q + (e + i) * NB_BLOCK) : a->bias[e + i] >> 6 & 0xffff;
}

NB_INLINE void gemm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    struct block unpacked[STRIP][RUN];
    int32_t minus[RUN * NB_TILE];
    const size_t t0 = (size_t)tile0 * NB_TILE, all = (size_t)tile1 * NB_TILE, t1 = all < a->tokens ? all : a->tokens;
    for (size_t p0 = panel0; p0 < panel1; p0 += STRIP) {
        const size_t strip = panel1 - p0 < STRIP ? panel1 - p0 : STRIP;
        for (size_t b0 = 0; b0 < w->blocks; b0 += RUN) {
            const size_t run = w->blocks - b0 < RUN ? w->blocks - b0 : RUN;
            for (size_t p = 0; p < strip; p++)
                for (size_t b = 0; b < run; b++)
                    unpack(&unpacked[p][b], w, w->data + (p0 + p) * w->panel_stride, b0 + b, bits, group);
            for (size_t t = t0; t < t1; t += NB_TILE) {
                const size_t e = (t / NB_TILE * w->blocks + b0) * NB_TILE, tokens = t1 - t < NB_TILE ? t1 - t : NB_TILE;
                if (bits == 4) negative_sums(minus, a, e, run, group);
                for (size_t p = 0; p < strip; p++)
                    for (size_t i = 0; i < tokens; i++)
                        inner(y + (t + i) * ldy + (p0 + p) * NB_PANEL, unpacked[p], a->q + (e + i) * NB_BLOCK, a->scale + e + i,
                              minus + i, run, b0 == 0, bits, group);
            }
        }
        for (size_t i = 0; i < 2 * strip; i++) {
            __m128 factor[2];
            nb_halves4x2(factor, w->data + (p0 + i / 2) * w->panel_stride + 16 * (i % 2));
            for (int k = 0; k < 2; k++) {
                factor[k] = _mm_mul_ps(factor[k], _mm_set1_ps(w->row_mul));
                for (size_t t = t0; t < t1; t++) {
                    float *at = y + t * ldy + p0 * NB_PANEL + 8 * i + 4 * (size_t)k;
                    _mm_storeu_ps(at, _mm_mul_ps(_mm_loadu_ps(at), factor[k]));
                }
            }
        }
    }
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__sse41;
void nb_gemm_f32_q8b32_q4g16s8p16x4__sse41(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                           uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__sse41;
void nb_gemm_f32_q8b32_q4g32s8p16x4__sse41(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                           uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__sse41;
void nb_gemm_f32_q8b32_q8g32s8p16x4__sse41(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                           uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
