/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, AVX-512 VNNI, all formats: y[r] = row_factor * sum over blocks of (float)I * scale.
 * Reads layout p16x4 as one stream, a panel at a time. vpdpbusd wants unsigned weights, so codes become value + 64 (or
 * + 128 at 8 bits) and the int32 sum starts at -64 (-128) times the sum of the block's q, which is the stored bias.
 * Groups of 32 and more: (float)I_raw * (float)group_scale is exactly rounded from the same integer as (float)(I_raw *
 * group_scale), as both factors fit in 24 bits. Groups of 16: 64 * sum(q) of the first half comes from four more
 * vpdpbusd, the halves meet their scales in int32. One token is bound by memory: a block of 272 bytes has some 28 cycles
 * at 40 GB/s and 4.1 GHz. On Zen 5 (four vector pipes, two loads a cycle) its work takes 10: 35 operations, 19 loads
 * and prefetches. Groups of 16 take some 12 of 29 cycles, 8 bits 14 of 54. Counted, not measured.
 * Hence one panel at a time, and prefetch 8 KiB ahead, past the panel's end into the next panel.
 * Needs: a->tile == 1, code_offset and panel_stride multiples of 64, values -64..63. */
#include "ops/x86_64/avx512.h"

enum { AHEAD = 8192 };

/* (float)I of one block */
NB_INLINE __m512 block(const uint8_t *codes, const uint8_t *scales, const int8_t *q, int32_t bias, __m512i table, int bits,
                       int group) {
    __m512i u[8];
    nb_unsigned16(u, codes, table, bits);
    __m512i low = _mm512_setzero_si512(), high = _mm512_set1_epi32(bits == 8 ? 2 * bias : bias);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        low = _mm512_dpbusd_epi32(low, u[j], nb_dword16(q + 4 * j));
        high = _mm512_dpbusd_epi32(high, u[4 + j], nb_dword16(q + 16 + 4 * j));
    }
    if (group != 16)
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(low, high)), _mm512_cvtepi32_ps(nb_group16(scales)));
    __m512i extra = _mm512_setzero_si512(); /* 64 * sum of q 0..15: what low has too much and high too little */
    NB_UNROLL
    for (int j = 0; j < 4; j++) extra = _mm512_dpbusd_epi32(extra, _mm512_set1_epi8(64), nb_dword16(q + 4 * j));
    low = _mm512_mullo_epi32(_mm512_sub_epi32(low, extra), nb_group16(scales));
    high = _mm512_mullo_epi32(_mm512_add_epi32(high, extra), nb_group16(scales + NB_PANEL));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(low, high));
}

NB_INLINE void gemv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const __m512i table = nb_table16(w->table);
    const size_t bytes = bits == 4 ? 256 : 512, blocks = w->blocks;
    for (size_t t = tile0; t < tile1; t++)
        for (size_t p = panel0; p < panel1; p++) {
            const uint8_t *panel = w->data + p * w->panel_stride, *codes = panel + w->code_offset;
            const int8_t *q = a->q + t * blocks * NB_BLOCK;
            const float *scale = a->scale + t * blocks;
            const int32_t *bias = a->bias + t * blocks;
            for (size_t line = 0; line < w->code_offset; line += 64)
                _mm_prefetch((const char *)panel + AHEAD + line, _MM_HINT_T0);
            __m512 sum = _mm512_setzero_ps();
            for (size_t b = 0; b < blocks; b++, codes += bytes, q += NB_BLOCK) {
                NB_UNROLL
                for (size_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)codes + AHEAD + line, _MM_HINT_T0);
                const uint8_t *scales = panel + 2 * NB_PANEL + (group == 16 ? 2 * b : b >> w->group_shift) * NB_PANEL;
                sum = _mm512_add_ps(
                    sum, _mm512_mul_ps(block(codes, scales, q, bias[b], table, bits, group), _mm512_set1_ps(scale[b])));
            }
            const __m512 factor = _mm512_mul_ps(nb_halves16(panel), _mm512_set1_ps(w->row_mul));
            _mm512_storeu_ps(y + t * ldy + p * NB_PANEL, _mm512_mul_ps(sum, factor));
        }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__avx512vnni;
void nb_gemv_f32_q8b32_q4g16s8p16x4__avx512vnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__avx512vnni;
void nb_gemv_f32_q8b32_q4g32s8p16x4__avx512vnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__avx512vnni;
void nb_gemv_f32_q8b32_q8g32s8p16x4__avx512vnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
