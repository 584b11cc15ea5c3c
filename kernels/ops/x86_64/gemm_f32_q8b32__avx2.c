/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, AVX2, all formats. A strip of panels is unpacked for a few blocks of k at a time into L1, and
 * all tiles pass over it; y keeps the float sums from block to block. Inner tile: 32 rows (two panels) x 2 tokens, eight int32
 * sums in registers; a broadcast of activations serves four registers of weights.
 * 4 bits: activations are the unsigned side of vpmaddubsw, q + 128 <= 255, so a pair of products stays within 255 * 64 * 2 =
 * 32,640, and what the 128 adds, 128 * sum(value * group scale), belongs to the weights: sums start at minus that. Weights are
 * memory operands, group scales the second factor of vpmaddwd. A block of 32 rows x 2 tokens: 64 times vpmaddubsw, vpmaddwd,
 * vpaddd, 16 broadcasts, 8 times convert, multiply, add, store, 26 for starts, scales, spills and the loop: 266 instructions for
 * 2,048 multiply-adds. The best on paper is 192 in 64 cycles of two multipliers; with the float multiplies 68 cycles, 94 %.
 * 8 bits: 255 * 128 saturates, so weights become int16 = value * group scale (at most 32,640), two k a dword: 128 times
 * vpmaddwd and vpaddd, 32 broadcasts and 64 loads, 382 in all, and the same 68 cycles of two multipliers. Signs (vpsignb,
 * vpabsb before the 4-bit step) are as many instructions; weights as memory operands would be 160 loads, 80 cycles.
 * Needs: a->tile == NB_TILE, values -64..63 at 4 bits. */
#include "ops/x86_64/avx2.h"

enum { STRIP = 4, RUN = 8, RUN_WORDS = 4, TOKENS = 2 }; /* panels, blocks at 4 and 8 bits, tokens */

/* Eight rows of one block */
struct bytes {
    _Alignas(32) int8_t w[8][32]; /* [quad of k][row, k]: the value */
    int16_t pairs[2][16];         /* group scale of k 0..15 and of k 16..31, each twice a row */
    int32_t start[8];             /* -128 * sum of value * group scale */
};
struct words {
    _Alignas(32) int16_t w[16][16]; /* [pair of k][row, k]: value * group scale; pairs of a quad: k 0 and 2, 1 and 3 */
};

/* One run of blocks of a strip, and of a tile's activations: as q + 128, or as int16 in the order of the weights */
union strip {
    struct bytes bytes[STRIP][RUN][2];
    struct words words[STRIP][RUN_WORDS][2];
};
union tile {
    _Alignas(32) uint8_t bytes[RUN][NB_TILE][NB_BLOCK];
    int16_t words[RUN_WORDS][NB_TILE][NB_BLOCK];
};

NB_INLINE void store(void *to, __m256i x) { _mm256_storeu_si256((__m256i *)to, x); }
NB_INLINE __m256i even_words(__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
NB_INLINE __m256i odd_words(__m256i x) { return _mm256_srai_epi16(x, 8); }

NB_INLINE void unpack_bytes(struct bytes *to, const uint8_t *codes, __m256i table, __m256i low, __m256i high) {
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
    store(to->pairs[0], low);
    store(to->pairs[1], high);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i code = nb_load8(codes + 64 * j);
        const __m256i first = _mm256_shuffle_epi8(table, _mm256_and_si256(code, nibble)),
                      second = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(code, 4), nibble));
        store(to->w[j], first);
        store(to->w[4 + j], second);
        sum = nb_step8(nb_step8(sum, ones, first, low), ones, second, high);
    }
    store(to->start, _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7)));
}

NB_INLINE void unpack_words(struct words *to, const uint8_t *codes, __m256i scale) {
    NB_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i four = nb_load8(codes + 64 * j);
        store(to->w[2 * j], _mm256_mullo_epi16(even_words(four), scale));
        store(to->w[2 * j + 1], _mm256_mullo_epi16(odd_words(four), scale));
    }
}

NB_INLINE void unpack(union strip *to, const struct nb_mat *w, size_t panel0, size_t panels, size_t b0, size_t blocks, int bits,
                      int group) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)w->table));
    for (size_t p = 0; p < panels; p++) {
        const uint8_t *panel = w->data + (panel0 + p) * w->panel_stride, *codes = panel + w->code_offset;
        for (size_t b = 0; b < blocks; b++) {
            const uint8_t *next = codes + (b0 + b + (bits == 8 ? RUN_WORDS : RUN)) * (bits == 8 ? 512 : 256); /* run's block */
            for (size_t line = 0; line < (bits == 8 ? 512 : 256); line += 64)
                _mm_prefetch((const char *)next + line, _MM_HINT_T1);
            for (size_t half = 0; half < 2; half++) {
                const size_t g = group == 16 ? 2 * (b0 + b) : (b0 + b) >> w->group_shift;
                const uint8_t *scales = panel + 2 * NB_PANEL + g * NB_PANEL + 8 * half;
                const __m256i low = nb_pairs8(scales), high = group == 16 ? nb_pairs8(scales + NB_PANEL) : low;
                if (bits == 8) unpack_words(&to->words[p][b][half], codes + (b0 + b) * 512 + 32 * half, low);
                else unpack_bytes(&to->bytes[p][b][half], codes + (b0 + b) * 256 + 32 * half, table, low, high);
            }
        }
    }
}

NB_INLINE void take_tile(union tile *to, const int8_t *q, size_t blocks, int bits) {
    for (size_t b = 0; b < blocks; b++)
        for (size_t t = 0; t < NB_TILE; t++, q += NB_BLOCK) {
            const __m256i x = nb_load8(q);
            if (bits == 8) {
                store(to->words[b][t], even_words(x));
                store(to->words[b][t] + 16, odd_words(x));
            } else {
                store(to->bytes[b][t], _mm256_xor_si256(x, _mm256_set1_epi8(-128)));
            }
        }
}

/* The int32 sums of one block of 8 * registers rows x 2 tokens; w: the first panel's, `next` on is the second's */
NB_INLINE void sums4(__m256i sum[TOKENS][4], const struct bytes *const *w, size_t next, const uint8_t *q, int registers) {
    NB_UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i a[TOKENS];
        NB_UNROLL
        for (int t = 0; t < TOKENS; t++) a[t] = nb_dword8(q + t * NB_BLOCK + 4 * j);
        NB_UNROLL
        for (size_t i = 0; i < (size_t)registers; i++) {
            const size_t half = i / 2 * next + i % 2;
            NB_UNROLL
            for (int t = 0; t < TOKENS; t++) {
                const struct bytes *h = w[t] + half;
                const __m256i before = j ? sum[t][i] : nb_load8(h->start);
                sum[t][i] = nb_step8(before, a[t], nb_load8(h->w[j]), nb_load8(w[0][half].pairs[j / 4]));
                NB_KEEP(sum[t][i]);
            }
        }
    }
}

NB_INLINE void sums8(__m256i sum[TOKENS][4], const struct words *w, size_t next, const int16_t *q, int registers) {
    NB_UNROLL
    for (int j = 0; j < 16; j++) {
        __m256i a[TOKENS];
        NB_UNROLL
        for (int t = 0; t < TOKENS; t++) a[t] = nb_dword8(q + t * NB_BLOCK + j / 2 * 2 + j % 2 * 16);
        NB_UNROLL
        for (size_t i = 0; i < (size_t)registers; i++) {
            const __m256i x = nb_load8(w[i / 2 * next + i % 2].w[j]);
            NB_UNROLL
            for (int t = 0; t < TOKENS; t++) {
                const __m256i product = _mm256_madd_epi16(a[t], x);
                sum[t][i] = j ? _mm256_add_epi32(sum[t][i], product) : product;
                NB_KEEP(sum[t][i]);
            }
        }
    }
}

/* One or two panels (registers: 2 or 4) x tokens t, t + 1 of the tile, over a run of blocks, added to y. */
NB_INLINE void inner(float *const y[TOKENS], const union strip *s, size_t panel, const union tile *a, size_t t,
                     const float *scale, size_t blocks, int registers, int bits) {
    for (size_t b = 0; b < blocks; b++, scale += NB_TILE) {
        __m256i sum[TOKENS][4];
        if (bits == 8) {
            sums8(sum, s->words[panel][b], sizeof s->words[0] / sizeof(struct words), a->words[b][t], registers);
        } else { /* one address a token, lest the compiler sees that they are the same, loads first and multiplies then */
            const struct bytes *w[TOKENS] = {s->bytes[panel][b], s->bytes[panel][b]};
            __asm__("" : "+r"(w[1]));
            sums4(sum, w, sizeof s->bytes[0] / sizeof(struct bytes), a->bytes[b][t], registers);
        }
        NB_UNROLL
        for (int k = 0; k < TOKENS; k++) {
            const __m256 factor = _mm256_set1_ps(scale[k]);
            NB_UNROLL
            for (int i = 0; i < registers; i++)
                _mm256_storeu_ps(y[k] + 8 * i, _mm256_add_ps(_mm256_loadu_ps(y[k] + 8 * i),
                                                             _mm256_mul_ps(_mm256_cvtepi32_ps(sum[k][i]), factor)));
        }
    }
}

/* One run of blocks: a strip of panels x one tile */
NB_INLINE void run_tile(const union strip *s, size_t strip, const union tile *q, const struct nb_act *a, size_t tile, size_t b0,
                        size_t blocks, float *y, size_t ldy, int bits) {
    float spare[2 * NB_PANEL] = {0}; /* where the sums of tokens past the last go */
    const float *scale = a->scale + (tile * a->blocks + b0) * NB_TILE;
    for (size_t p = 0; p < strip; p += 2)
        for (size_t t = 0; t < NB_TILE && tile * NB_TILE + t < a->tokens; t += TOKENS) {
            float *rows[TOKENS];
            for (size_t k = 0; k < TOKENS; k++)
                rows[k] = tile * NB_TILE + t + k < a->tokens ? y + (tile * NB_TILE + t + k) * ldy + p * NB_PANEL : spare;
            if (p + 1 < strip) inner(rows, s, p, q, t, scale + t, blocks, 4, bits);
            else inner(rows, s, p, q, t, scale + t, blocks, 2, bits);
        }
}

NB_INLINE void gemm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    union strip s;
    union tile q;
    const size_t run = bits == 8 ? RUN_WORDS : RUN, left = tile1 * (size_t)NB_TILE, end = left < a->tokens ? left : a->tokens;
    for (size_t p0 = panel0; p0 < panel1; p0 += STRIP) {
        const size_t strip = panel1 - p0 < STRIP ? panel1 - p0 : STRIP;
        float *to = y + p0 * NB_PANEL;
        for (size_t t = tile0 * (size_t)NB_TILE; t < end; t++) memset(to + t * ldy, 0, strip * NB_PANEL * sizeof *y);
        for (size_t b0 = 0; b0 < w->blocks; b0 += run) {
            const size_t blocks = w->blocks - b0 < run ? w->blocks - b0 : run;
            unpack(&s, w, p0, strip, b0, blocks, bits, group);
            for (size_t tile = tile0; tile < tile1; tile++) {
                take_tile(&q, a->q + (tile * w->blocks + b0) * NB_TILE * NB_BLOCK, blocks, bits);
                run_tile(&s, strip, &q, a, tile, b0, blocks, to, ldy, bits);
            }
        }
        for (size_t i = 0; i < 2 * strip; i++) {
            const uint8_t *row_scale = w->data + (p0 + i / 2) * w->panel_stride + 16 * (i % 2);
            const __m256 factor = _mm256_mul_ps(nb_halves8(row_scale), _mm256_set1_ps(w->row_mul));
            for (size_t t = tile0 * (size_t)NB_TILE; t < end; t++) {
                float *at = to + t * ldy + 8 * i;
                _mm256_storeu_ps(at, _mm256_mul_ps(_mm256_loadu_ps(at), factor));
            }
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
