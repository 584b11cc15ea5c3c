/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, AVX2, all formats; the arithmetic of gemv_f32_q8b32__avx2.c.
 * A strip of panels is unpacked for a few blocks of k at a time into L1, as unsigned bytes (signed at 8 bits) beside
 * its group scales, and all tiles pass over it; y itself keeps the float sums between two runs of blocks.
 * Inner tile: 16 rows x 2 tokens, four int32 and four float accumulators in registers; a broadcast of 4 activations
 * serves both halves of the panel, which beats 8 rows x 4 tokens by 5 %. A step of 8 rows x 4 k costs vpmaddubsw,
 * vpmaddwd and vpaddd; the two multiplies share two ports, so 64 operations a cycle is the roof.
 * Needs: a->tile == NB_TILE, values -64..63. */
#include "ops/x86_64/avx2.h"

enum { STRIP = 4, RUN = 8, TOKENS = 2 }; /* panels, blocks, tokens */

/* Eight rows of one block: 352 bytes. */
struct half {
    _Alignas(32) uint8_t u[8][32]; /* quad of k, row, k: value + 64, or the signed byte itself at 8 bits */
    int16_t pairs[2][16];   /* group scale of k 0..15 and of k 16..31, each twice a row */
    int16_t start[16];      /* both, times 64: meets the negative sums of activations */
};

NB_INLINE void store(void *to, __m256i x) { _mm256_storeu_si256((__m256i *)to, x); }

NB_INLINE void unpack(struct half *to, const struct nb_mat *w, const uint8_t *panel, size_t b, int half, int bits, int group) {
    const uint8_t *codes = panel + w->code_offset + b * (bits == 4 ? 256 : 512) + 32 * (size_t)half;
    const uint8_t *scales = panel + 2 * NB_PANEL + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL + 8 * half;
    const __m256i low = nb_pairs8(scales), high = group == 16 ? nb_pairs8(scales + NB_PANEL) : low;
    store(to->pairs[0], low);
    store(to->pairs[1], high);
    store(to->start, _mm256_slli_epi16(_mm256_blend_epi16(low, high, 0xaa), 6));
    if (bits == 8) {
        for (int j = 0; j < 8; j++) store(to->u[j], nb_load8(codes + 64 * j));
        return;
    }
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i table = nb_table8(w);
    for (int j = 0; j < 4; j++) {
        const __m256i bytes = nb_load8(codes + 64 * j);
        store(to->u[j], _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble)));
        store(to->u[4 + j], _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)));
    }
}

/* `blocks` blocks of 16 rows times 2 tokens, added to y. q, scale and minus point at the first block's entry of the
 * first token; blocks lie NB_TILE entries apart. minus: -sum(q) as two int16 (nb_minus_sums8). */
NB_INLINE void inner(float *const y[TOKENS], const struct half *h, const int8_t *q, const float *scale, const int32_t *minus,
                     size_t blocks, int first, int bits) {
    __m256 total[TOKENS][2];
    NB_UNROLL
    for (int t = 0; t < TOKENS; t++) {
        NB_UNROLL
        for (int i = 0; i < 2; i++) total[t][i] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y[t] + 8 * i);
    }
    for (size_t b = 0; b < blocks; b++, h += 2, q += NB_TILE * NB_BLOCK, scale += NB_TILE, minus += NB_TILE) {
        __m256i sum[TOKENS][2];
        NB_UNROLL
        for (int t = 0; t < TOKENS; t++) {
            const __m256i m = nb_dword8(minus + t);
            NB_UNROLL
            for (int i = 0; i < 2; i++)
                sum[t][i] = bits == 8 ? _mm256_setzero_si256() : _mm256_madd_epi16(nb_load8(h[i].start), m);
        }
        NB_UNROLL
        for (int j = 0; j < 8; j++) {
            __m256i a[TOKENS];
            NB_UNROLL
            for (int t = 0; t < TOKENS; t++) a[t] = nb_dword8(q + t * NB_BLOCK + 4 * j);
            NB_UNROLL
            for (int i = 0; i < 2; i++) {
                const __m256i u = nb_load8(h[i].u[j]), pairs = nb_load8(h[i].pairs[j / 4]);
                const __m256i magnitude = bits == 8 ? _mm256_abs_epi8(u) : u;
                NB_UNROLL
                for (int t = 0; t < TOKENS; t++) {
                    sum[t][i] = nb_step8(sum[t][i], magnitude, bits == 8 ? _mm256_sign_epi8(a[t], u) : a[t], pairs);
                    NB_KEEP(sum[t][i]);
                }
            }
        }
        NB_UNROLL
        for (int t = 0; t < TOKENS; t++) {
            const __m256 s = _mm256_set1_ps(scale[t]);
            NB_UNROLL
            for (int i = 0; i < 2; i++) total[t][i] = _mm256_add_ps(total[t][i], _mm256_mul_ps(_mm256_cvtepi32_ps(sum[t][i]), s));
        }
    }
    NB_UNROLL
    for (int t = 0; t < TOKENS; t++) {
        NB_UNROLL
        for (int i = 0; i < 2; i++) _mm256_storeu_ps(y[t] + 8 * i, total[t][i]);
    }
}

/* The negative sums of activations for one run of blocks of one tile. */
NB_INLINE void negative_sums(int32_t *minus, const struct nb_act *a, size_t e, size_t blocks, int group) {
    for (size_t i = 0; i < blocks * NB_TILE; i++)
        minus[i] = group == 16 ? _mm_cvtsi128_si32(_mm256_castsi256_si128(nb_minus_sums8(a->q + (e + i) * NB_BLOCK)))
                               : a->bias[e + i] >> 6 & 0xffff;
}

NB_INLINE void gemm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    struct half halves[STRIP][RUN][2];
    int32_t minus[RUN * NB_TILE];
    float spare[TOKENS][NB_PANEL] = {{0}}; /* where the sums of tokens past the last go */
    for (size_t p0 = panel0; p0 < panel1; p0 += STRIP) {
        const size_t strip = panel1 - p0 < STRIP ? panel1 - p0 : STRIP;
        for (size_t b0 = 0; b0 < w->blocks; b0 += RUN) {
            const size_t run = w->blocks - b0 < RUN ? w->blocks - b0 : RUN;
            for (size_t p = 0; p < strip; p++)
                for (size_t b = 0; b < run; b++)
                    for (int half = 0; half < 2; half++)
                        unpack(&halves[p][b][half], w, w->data + (p0 + p) * w->panel_stride, b0 + b, half, bits, group);
            for (size_t tile = tile0; tile < tile1; tile++) {
                const size_t e = (tile * w->blocks + b0) * NB_TILE;
                if (bits == 4) negative_sums(minus, a, e, run, group);
                for (size_t p = 0; p < strip; p++)
                    for (size_t t = 0; t < NB_TILE && tile * NB_TILE + t < a->tokens; t += TOKENS) {
                        float *rows[TOKENS];
                        for (size_t k = 0; k < TOKENS; k++)
                            rows[k] = tile * NB_TILE + t + k < a->tokens
                                          ? y + (tile * NB_TILE + t + k) * ldy + (p0 + p) * NB_PANEL
                                          : spare[k];
                        inner(rows, halves[p][0], a->q + (e + t) * NB_BLOCK, a->scale + e + t, minus + t, run, b0 == 0, bits);
                    }
            }
        }
        for (size_t t = tile0 * NB_TILE; t < a->tokens && t < (size_t)tile1 * NB_TILE; t++)
            for (size_t i = 0; i < 2 * strip; i++) {
                const uint8_t *row_scale = w->data + (p0 + i / 2) * w->panel_stride + 16 * (i % 2);
                float *at = y + t * ldy + p0 * NB_PANEL + 8 * i;
                const __m256 factor = _mm256_mul_ps(nb_halves8(row_scale), _mm256_set1_ps(w->row_mul));
                _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), factor));
            }
    }
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__avx2;
void nb_gemm_f32_q8b32_q4g16s8p16x4__avx2(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__avx2;
void nb_gemm_f32_q8b32_q4g32s8p16x4__avx2(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__avx2;
void nb_gemm_f32_q8b32_q8g32s8p16x4__avx2(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
