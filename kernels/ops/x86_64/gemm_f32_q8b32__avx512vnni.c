/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, AVX-512 VNNI, all formats; the arithmetic of gemv_f32_q8b32__avx512vnni.c.
 * Inner tile: 16 rows x 16 tokens. A block is unpacked into eight registers and meets all 16 tokens, whose float sums
 * are 16 more; activations are {1to16} memory operands, tokens go four at a time (two for groups of 16) so that four
 * chains of vpdpbusd overlap. A strip of panels stays in L2 while the tiles pass; within a tile RUN blocks of
 * activations stay in L1 while the strip's panels pass, their sums wait in `sums`.
 * Cycles on Zen 5 (two pipes for vpdpbusd and multiply, two others for add and convert, two loads) per block of 16 rows
 * x 16 tokens: 16 * (8 vpdpbusd + 2 multiplies) / 2 = 80 for the arithmetic, (16 * 10 + 6) / 2 = 83 for the loads; the
 * other pipes have room for unpacking. 64 of 83 are vpdpbusd: 77 % of the int8 peak at most (8 bits: 85 cycles, 75 %).
 * Groups of 16: 11 operations and 11 loads a token, 92 cycles, 70 %.
 * Two ports for every 512-bit operation (Ice Lake and later servers): 128 vpdpbusd, 64 for the float sums and 25 for unpacking
 * are 217, 109 cycles, 59 %; 67 % would be left without any unpacking. Counted, not measured.
 * Needs: a->tile == NB_TILE with zeros for missing tokens, values -64..63. */
#include "ops/x86_64/avx512.h"

enum { STRIP = 8, RUN = 16, STRIP_BYTES = 512 << 10 };

/* No load moves past this. Otherwise compilers start the sums of all tokens at once and spill them. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

struct run {
    const uint8_t *panel, *codes; /* codes: of the first block */
    const int8_t *q;              /* these three: of the first block's first token */
    const float *scale;
    const int32_t *bias;
    const int32_t *half; /* half_sums(); groups of 16 only */
    size_t block0, blocks;
};

/* Where half_sums() puts token t's half h */
#define HALF(t, h) (16 * ((t) / 8) + 4 * (2 * ((t) % 2) + (h)) + (t) % 8 / 2)

/* -64 * sum of q 0..15 and of q 16..31 of every token and block: a register holds two tokens, four sums of 16 */
NB_INLINE void half_sums(int32_t half[RUN][2 * NB_TILE], const int8_t *q, size_t blocks) {
    for (size_t i = 0; i < 2 * blocks; i++, q += 8 * NB_BLOCK) {
        __m512i two[4];
        NB_UNROLL
        for (int d = 0; d < 4; d++) {
            __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(64), nb_load16(q + 2 * NB_BLOCK * d));
            sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, 0x4e));
            two[d] = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, 0xb1));
        }
        const __m512i low = _mm512_mask_blend_epi32(0xaaaa, two[0], two[1]),
                      high = _mm512_mask_blend_epi32(0xaaaa, two[2], two[3]);
        const __m512i all = _mm512_mask_blend_epi32(0xcccc, low, high);
        _mm512_storeu_si512(half[i / 2] + 16 * (i % 2), _mm512_sub_epi32(_mm512_setzero_si512(), all));
    }
}

/* (float)I * scale of tokens t .. t + n - 1, added to total; n: 4, or 2 for groups of 16 */
NB_INLINE void tokens4(__m512 *total, const struct run *r, const int8_t *q, size_t e, const int32_t *half, const __m512i u[8],
                       __m512i low, __m512i high, __m512 group_scale, int t, int bits, int group) {
    const int n = group == 16 ? 2 : 4, quads = group == 16 ? 4 : 8;
    __m512i sum[4];
    NB_UNROLL
    for (int i = 0; i < n; i++) {
        sum[i] = nb_dword16(group == 16 ? half + HALF(t + i, 0) : r->bias + e + (size_t)(t + i));
        if (bits == 8) sum[i] = _mm512_add_epi32(sum[i], sum[i]);
        if (group == 16) sum[2 + i] = nb_dword16(half + HALF(t + i, 1));
    }
    NB_UNROLL
    for (int j = 0; j < quads; j++) {
        NB_UNROLL
        for (int i = 0; i < n; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], u[j], nb_dword16(q + NB_BLOCK * (t + i) + 4 * j));
            if (group == 16)
                sum[2 + i] = _mm512_dpbusd_epi32(sum[2 + i], u[4 + j], nb_dword16(q + NB_BLOCK * (t + i) + 16 + 4 * j));
        }
    }
    NB_UNROLL
    for (int i = 0; i < n; i++) {
        __m512 x;
        if (group == 16)
            x = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_mullo_epi32(sum[i], low), _mm512_mullo_epi32(sum[2 + i], high)));
        else x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i]), group_scale);
        total[t + i] = _mm512_add_ps(total[t + i], _mm512_mul_ps(x, _mm512_set1_ps(r->scale[e + (size_t)(t + i)])));
        NB_DONE(total[t + i]);
    }
}

/* One panel times the first `tokens` (constant, 8 or 16) of a tile, over one run of blocks, added to sums. */
NB_INLINE void inner(float (*sums)[NB_PANEL], const struct nb_mat *w, const struct run *r, __m512i table, int tokens, int bits,
                     int group) {
    __m512 total[NB_TILE];
    NB_UNROLL
    for (int t = 0; t < tokens; t++) total[t] = _mm512_loadu_ps(sums[t]);
    const uint8_t *codes = r->codes;
    const int8_t *q = r->q;
    for (size_t b = 0; b < r->blocks; b++, codes += bits == 4 ? 256 : 512, q += NB_TILE * NB_BLOCK) {
        const size_t g = group == 16 ? 2 * (r->block0 + b) : (r->block0 + b) >> w->group_shift;
        const uint8_t *scales = r->panel + 2 * NB_PANEL + g * NB_PANEL;
        __m512i u[8];
        nb_unsigned16(u, codes, table, bits);
        const __m512i low = nb_group16(scales), high = group == 16 ? nb_group16(scales + NB_PANEL) : low;
        const __m512 group_scale = _mm512_cvtepi32_ps(low);
        NB_UNROLL
        for (int t = 0; t < tokens; t += group == 16 ? 2 : 4) {
            tokens4(total, r, q, b * NB_TILE, r->half + b * 2 * NB_TILE, u, low, high, group_scale, t, bits, group);
            IN_ORDER;
        }
    }
    NB_UNROLL
    for (int t = 0; t < tokens; t++) _mm512_storeu_ps(sums[t], total[t]);
}

/* One tile times the panels [p0, p0 + strip) */
NB_INLINE void tile16(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, size_t p0, size_t strip, size_t tile,
                      int first, int bits, int group) {
    const __m512i table = nb_table16(w->table);
    const size_t left = a->tokens - tile * NB_TILE, tokens = left < NB_TILE ? left : NB_TILE, bytes = bits == 4 ? 256 : 512;
    _Alignas(64) float sums[STRIP][NB_TILE][NB_PANEL];
    _Alignas(64) int32_t half[RUN][2 * NB_TILE];
    for (size_t p = 0; p < strip; p++) memset(sums[p], 0, sizeof sums[p]);
    for (size_t b = 0; b < w->blocks; b += RUN) {
        const size_t e = (tile * w->blocks + b) * NB_TILE;
        struct run r = {.q = a->q + e * NB_BLOCK, .scale = a->scale + e, .bias = a->bias + e, .half = half[0], .block0 = b};
        r.blocks = w->blocks - b < RUN ? w->blocks - b : RUN;
        if (group == 16) half_sums(half, r.q, r.blocks);
        for (size_t p = 0; p < strip; p++) {
            r.panel = w->data + (p0 + p) * w->panel_stride;
            r.codes = r.panel + w->code_offset + b * bytes;
            if (first) /* the panels come from memory: fetch the next run into L2 */
                for (size_t line = 0; line < RUN * bytes; line += 64)
                    _mm_prefetch((const char *)r.codes + RUN * bytes + line, _MM_HINT_T1);
            if (tokens > 8) inner(sums[p], w, &r, table, 16, bits, group);
            else inner(sums[p], w, &r, table, 8, bits, group);
        }
    }
    for (size_t p = 0; p < strip; p++) {
        const __m512 factor = _mm512_mul_ps(nb_halves16(w->data + (p0 + p) * w->panel_stride), _mm512_set1_ps(w->row_mul));
        for (size_t t = 0; t < tokens; t++)
            _mm512_storeu_ps(y + (tile * NB_TILE + t) * ldy + (p0 + p) * NB_PANEL,
                             _mm512_mul_ps(_mm512_loadu_ps(sums[p][t]), factor));
    }
}

NB_INLINE void gemm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const size_t fit = STRIP_BYTES / w->panel_stride, most = fit < 1 ? 1 : fit < STRIP ? fit : STRIP;
    for (size_t p = panel0; p < panel1; p += most)
        for (size_t tile = tile0; tile < tile1; tile++)
            tile16(w, a, y, ldy, p, panel1 - p < most ? panel1 - p : most, tile, tile == tile0, bits, group);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__avx512vnni;
void nb_gemm_f32_q8b32_q4g16s8p16x4__avx512vnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__avx512vnni;
void nb_gemm_f32_q8b32_q4g32s8p16x4__avx512vnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__avx512vnni;
void nb_gemm_f32_q8b32_q8g32s8p16x4__avx512vnni(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy,
                                                uint32_t panel0, uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
