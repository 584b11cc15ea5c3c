/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, SSE4.1, all formats: y[r] = row_factor * sum over blocks of (float)I * scale; the scheme of
 * gemv_f32_q8b32__avx2.c with a register for 4 rows x 4 k. The four registers of a panel's 16 rows go together, so that a
 * quad of activations is spread once for all of them.
 * 4 bits: pshufb looks up value + 64 (1..127), unsigned for pmaddubsw; -64 * sum(q) * group_scale is where the int32 sum
 * starts. 8 bits: |w| and q with w's sign. Group scales are the second factor of pmaddwd, at no cost.
 * Per block of 16 rows x 32 k at 4 bits: 32 steps of pmaddubsw, pmaddwd, paddd (96); 16 loads and 16 copies of codes, 16
 * shifts, 32 ands, 32 copies of the table, 32 look-ups (144); 8 spread quads; 27 for group scales and starts, 14 for the float
 * sums, 14 for prefetch and the loop: 303 instructions, 68 of them multiplies, or 76 cycles of a Nehalem (four a cycle, one
 * multiply) for 272 bytes. 8 bits: 32 times load, pabsb, copy, psignb and the three, 8 spreads, 40 others: 272.
 * Needs: a->tile == 1, code_offset and panel_stride multiples of 64, values -64..63. */
#include "ops/x86_64/sse41.h"

enum { AHEAD = 4096 };

/* No load moves past this. Otherwise compilers look up the values of several quads at once and spill them. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

NB_INLINE void block4(__m128i sum[4], const uint8_t *codes, const int8_t *q, __m128i table, const __m128i low[4],
                      const __m128i high[4]) {
    const __m128i nibble = _mm_set1_epi8(15), q0 = nb_load4(q), q1 = nb_load4(q + 16);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m128i a0 = nb_quad4(q0, j), a1 = nb_quad4(q1, j);
        NB_UNROLL
        for (int r = 0; r < 4; r++) {
            const __m128i bytes = nb_load4(codes + 64 * j + 16 * r);
            sum[r] = nb_step4(sum[r], _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble)), a0, low[r]);
            NB_KEEP(sum[r]);
            const __m128i upper = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
            sum[r] = nb_step4(sum[r], _mm_shuffle_epi8(table, upper), a1, high[r]);
            NB_KEEP(sum[r]);
        }
        IN_ORDER;
    }
}

NB_INLINE void block8(__m128i sum[4], const uint8_t *codes, const int8_t *q, const __m128i pairs[4]) {
    NB_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m128i a = nb_quad4(nb_load4(q + j / 4 * 16), j % 4);
        NB_UNROLL
        for (int r = 0; r < 4; r++) {
            sum[r] = nb_signed_step4(sum[r], nb_load4(codes + 64 * j + 16 * r), a, pairs[r]);
            NB_KEEP(sum[r]);
        }
    }
}

NB_INLINE void gemv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const __m128i table = nb_table4(w);
    const size_t bytes = bits == 4 ? 256 : 512, blocks = w->blocks;
    for (size_t t = tile0; t < tile1; t++)
        for (size_t p = panel0; p < panel1; p++) {
            const uint8_t *panel = w->data + p * w->panel_stride, *codes = panel + w->code_offset;
            const int8_t *q = a->q + t * blocks * NB_BLOCK;
            __m128 acc[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
            for (size_t line = 0; line < w->code_offset; line += 64)
                _mm_prefetch((const char *)panel + AHEAD + line, _MM_HINT_T0);
            for (size_t b = 0; b < blocks; b++, codes += bytes, q += NB_BLOCK) {
                NB_UNROLL
                for (size_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)codes + AHEAD + line, _MM_HINT_T0);
                const uint8_t *scales = panel + 2 * NB_PANEL + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
                __m128i low[4], high[4], sum[4];
                nb_pairs4(low, scales);
                if (group == 16) nb_pairs4(high, scales + NB_PANEL);
                /* -sum(q) as int16: all of it against the low copy of a group scale, or one of each half of the block */
                __m128i minus = _mm_setzero_si128();
                if (bits == 4) minus = _mm_set1_epi32(group == 16 ? nb_minus_sums4(q) : a->bias[t * blocks + b] >> 6 & 0xffff);
                NB_UNROLL
                for (int r = 0; r < 4; r++) {
                    if (group != 16) high[r] = low[r];
                    sum[r] = _mm_setzero_si128();
                    if (bits == 4) sum[r] = _mm_madd_epi16(_mm_slli_epi16(_mm_blend_epi16(low[r], high[r], 0xaa), 6), minus);
                }
                if (bits == 4) block4(sum, codes, q, table, low, high);
                else block8(sum, codes, q, low);
                const __m128 scale = _mm_set1_ps(a->scale[t * blocks + b]);
                NB_UNROLL
                for (int r = 0; r < 4; r++) acc[r] = _mm_add_ps(acc[r], _mm_mul_ps(_mm_cvtepi32_ps(sum[r]), scale));
            }
            NB_UNROLL
            for (int i = 0; i < 2; i++) {
                __m128 factor[2];
                nb_halves4x2(factor, panel + 16 * i);
                NB_UNROLL
                for (int k = 0; k < 2; k++)
                    _mm_storeu_ps(y + t * ldy + p * NB_PANEL + 8 * i + 4 * k,
                                  _mm_mul_ps(acc[2 * i + k], _mm_mul_ps(factor[k], _mm_set1_ps(w->row_mul))));
            }
        }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__sse41;
void nb_gemv_f32_q8b32_q4g16s8p16x4__sse41(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                           uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__sse41;
void nb_gemv_f32_q8b32_q4g32s8p16x4__sse41(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                           uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__sse41;
void nb_gemv_f32_q8b32_q8g32s8p16x4__sse41(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                           uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
