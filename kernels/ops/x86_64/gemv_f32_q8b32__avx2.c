/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, AVX2, all formats: y[r] = row_factor * sum over blocks of (float)I * scale.
 * Reads layout p16x4 as one stream: the two halves of a panel (8 rows each, one register of dword lanes) go together,
 * so that each broadcast of 4 activations serves both and two chains of float additions overlap.
 * 4 bits: vpshufb looks up value + 64 (1..127), unsigned for vpmaddubsw; -64 * sum(q) * group_scale is where the
 * int32 sum starts. 8 bits: |w| and q with w's sign. Group scales are the second factor of vpmaddwd, at no cost.
 * One token is bound by memory, so prefetch runs 4 KiB ahead, past the panel's end into the next panel; the lines of scales
 * between two panels' codes count too: without them groups of 16 in rows of 576 read a quarter slower.
 * Needs: a->tile == 1, code_offset and panel_stride multiples of 64, values -64..63. */
#include "ops/x86_64/avx2.h"

enum { AHEAD = 4096 };

NB_INLINE __m256i block4(const uint8_t *codes, const int8_t *q, __m256i table, __m256i low, __m256i high, __m256i acc) {
    const __m256i nibble = _mm256_set1_epi8(15);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i bytes = nb_load8(codes + 64 * j);
        const __m256i u0 = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
        const __m256i u1 = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
        acc = nb_step8(acc, u0, nb_dword8(q + 4 * j), low);
        acc = nb_step8(acc, u1, nb_dword8(q + 16 + 4 * j), high);
    }
    return acc;
}

NB_INLINE __m256i block8(const uint8_t *codes, const int8_t *q, __m256i pairs) {
    __m256i acc = _mm256_setzero_si256();
    NB_UNROLL
    for (int j = 0; j < 8; j++) acc = nb_signed_step8(acc, nb_load8(codes + 64 * j), nb_dword8(q + 4 * j), pairs);
    return acc;
}

NB_INLINE __m256 add_block(__m256 acc, __m256i sum, __m256 scale) {
    return _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
}

NB_INLINE void gemv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const __m256i table = nb_table8(w);
    const size_t bytes = bits == 4 ? 256 : 512, blocks = w->blocks;
    for (size_t t = tile0; t < tile1; t++)
        for (size_t p = panel0; p < panel1; p++) {
            const uint8_t *panel = w->data + p * w->panel_stride, *codes = panel + w->code_offset;
            const int8_t *q = a->q + t * blocks * NB_BLOCK;
            __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (size_t line = 0; line < w->code_offset; line += 64)
                _mm_prefetch((const char *)panel + AHEAD + line, _MM_HINT_T0);
            for (size_t b = 0; b < blocks; b++, codes += bytes, q += NB_BLOCK) {
                NB_UNROLL
                for (size_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)codes + AHEAD + line, _MM_HINT_T0);
                const uint8_t *scales = panel + 2 * NB_PANEL + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
                const __m256 scale = _mm256_set1_ps(a->scale[t * blocks + b]);
                /* -sum(q) as int16: all of it against the low copy of a group scale, or one of each half of the block */
                __m256i minus = _mm256_setzero_si256();
                if (bits == 4) minus = group == 16 ? nb_minus_sums8(q) : _mm256_set1_epi32(a->bias[t * blocks + b] >> 6 & 0xffff);
                NB_UNROLL
                for (int half = 0; half < 2; half++) {
                    const __m256i low = nb_pairs8(scales + 8 * half);
                    __m256i sum;
                    if (bits == 8) {
                        sum = block8(codes + 32 * half, q, low);
                    } else {
                        const __m256i high = group == 16 ? nb_pairs8(scales + NB_PANEL + 8 * half) : low;
                        const __m256i start = _mm256_slli_epi16(_mm256_blend_epi16(low, high, 0xaa), 6);
                        sum = block4(codes + 32 * half, q, table, low, high, _mm256_madd_epi16(start, minus));
                    }
                    acc[half] = add_block(acc[half], sum, scale);
                }
            }
            NB_UNROLL
            for (int half = 0; half < 2; half++) {
                const __m256 factor = _mm256_mul_ps(nb_halves8(panel + 16 * half), _mm256_set1_ps(w->row_mul));
                _mm256_storeu_ps(y + t * ldy + p * NB_PANEL + 8 * half, _mm256_mul_ps(acc[half], factor));
            }
        }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__avx2;
void nb_gemv_f32_q8b32_q4g16s8p16x4__avx2(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__avx2;
void nb_gemv_f32_q8b32_q4g32s8p16x4__avx2(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__avx2;
void nb_gemv_f32_q8b32_q8g32s8p16x4__avx2(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                          uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
