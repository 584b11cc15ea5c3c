/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, AVX-VNNI, all formats: y[r] = row_factor * sum over blocks of (float)I * scale.
 * Reads layout p16x4 as one stream: the two halves of a panel (8 rows each, one register of dword lanes) go together, so
 * that each broadcast of 4 activations serves both. vpdpbusd does in one instruction what takes vpmaddubsw, vpmaddwd and
 * vpaddd on AVX2, but leaves the group scales over.
 * Groups of 32 and more: (float)I_raw * (float)group_scale is exactly rounded from the same integer as (float)(I_raw *
 * group_scale), as both factors fit in 24 bits. Groups of 16: the halves of a block meet their scales in int32, and the
 * correction of the first half comes from four more vpdpbusd, which both halves of the panel share.
 * Per block of 272 bytes at 4 bits: 8 loads, 8 shifts, 16 ands, 16 look-ups, 8 broadcasts, 16 vpdpbusd (72); 6 for start and
 * group scales, 9 for the float sums, 14 for prefetch and the loop: 101 instructions for 512 multiply-adds. Groups of 16: 110;
 * 8 bits, 528 bytes: 75. The small cores that have only this level split each of 256 bits in two: at five a cycle, some 38
 * cycles a block, which is 24 GB/s at 3.4 GHz. Counted, not measured.
 * Needs: a->tile == 1, code_offset and panel_stride multiples of 64, values -64..63. */
#include "ops/x86_64/avxvnni.h"

enum { AHEAD = 4096 };

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
                /* sum[half][0] is all of the block, or its first 16 k, and then [1] the other 16 */
                __m256i start = _mm256_set1_epi32(a->bias[t * blocks + b]), sum[2][2];
                if (bits == 8) start = _mm256_add_epi32(start, start);
                const __m256i first = group == 16 ? nb_sums8(q) : _mm256_setzero_si256();
                NB_UNROLL
                for (int half = 0; half < 2; half++) {
                    sum[half][0] = group == 16 ? _mm256_sub_epi32(_mm256_setzero_si256(), first) : start;
                    sum[half][1] = _mm256_add_epi32(start, first);
                }
                NB_UNROLL
                for (int j = 0; j < 8; j++) {
                    const __m256i s = nb_dword8(q + 4 * j);
                    const int part = group == 16 ? j / 4 : 0;
                    NB_UNROLL
                    for (int half = 0; half < 2; half++)
                        sum[half][part] = nb_dot8(sum[half][part], nb_unsigned8(codes + 32 * half, j, table, bits), s);
                }
                NB_UNROLL
                for (int half = 0; half < 2; half++) {
                    const __m256i low = nb_groups8(scales + 8 * half);
                    __m256 x;
                    if (group == 16)
                        x = _mm256_cvtepi32_ps(
                            _mm256_add_epi32(_mm256_mullo_epi32(sum[half][0], low),
                                             _mm256_mullo_epi32(sum[half][1], nb_groups8(scales + NB_PANEL + 8 * half))));
                    else x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[half][0]), _mm256_cvtepi32_ps(low));
                    acc[half] = _mm256_add_ps(acc[half], _mm256_mul_ps(x, scale));
                }
            }
            NB_UNROLL
            for (int half = 0; half < 2; half++) {
                const __m256 factor = _mm256_mul_ps(nb_halves8(panel + 16 * half), _mm256_set1_ps(w->row_mul));
                _mm256_storeu_ps(y + t * ldy + p * NB_PANEL + 8 * half, _mm256_mul_ps(acc[half], factor));
            }
        }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__avxvnni;
void nb_gemv_f32_q8b32_q4g16s8p16x4__avxvnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__avxvnni;
void nb_gemv_f32_q8b32_q4g32s8p16x4__avxvnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__avxvnni;
void nb_gemv_f32_q8b32_q8g32s8p16x4__avxvnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                             uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
