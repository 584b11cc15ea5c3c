/* SPDX-License-Identifier: Apache-2.0
 * Exact sums of int8 products for machines without vectors: one 64-bit product does the work of several. A number that is a
 * sum of small signed ones at fixed distances, lanes, multiplies like a polynomial, and a lane of the result is read back
 * exactly as long as no sum outgrows its lane (32 products come to 516,128 at most, 21 bits with the sign). All modulo 2^64.
 * - One token, 4 bits: (v0 + v1 2^32) (q1 + q0 2^32) has v0 q0 + v1 q1 in its upper lane. A byte of codes is v0 of k and v1 of
 *   k + 16, so a table of 256 gives the first factor: lbu, slli, add, ld, mul, add for two products on rv64gc, 3 a product;
 *   4 at groups of 16, where the two sums have to stay apart. clang 22: 3.6 and 4.9.
 * - One token, 8 bits: bytes of two rows lie 32 bits apart in a word once the others are masked; 128 is added to make them
 *   unsigned and bias takes it off the sum. srl, and, mul, add: 2.1 a product with the load. clang 22: 2.8.
 * - Tiles: a block is decoded once, to words of three values 21 bits apart; the three products meet in the top lane. ld, mul,
 *   add: 1.1 a product with the odd 16th value. clang 22: 1.4, and 0.65 for decoding, 0.2 for the tokens' words.
 * One product a multiply, from bytes that are decoded first, took 10.5 (one token) and 5.9 (tiles). The float sums take 0.3. */
#ifndef NB_OPS_LANES_H
#define NB_OPS_LANES_H

#include "ops/scalar/math.h"
#include "ops/unroll.h"

/* Two loops unrolled into each other are too much for the registers. */
#ifdef __clang__
#define NB_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define NB_ROLLED _Pragma("GCC unroll 1")
#endif

enum { NB_WORDS = 6, NB_LANE = 21, NB_TOP = 43 }; /* words of 16 values, bits of a lane, first bit of the top lane */

/* A signed number in the lane that starts at bit `at` */
static inline uint64_t nb_lane(int8_t x, int at) { return (uint64_t)(int64_t)x << at; }

/* The signed number in the uppermost lane, from bit `at` on: what is below rounds away. */
static inline int32_t nb_top(uint64_t x, int at) { return (int32_t)((int64_t)(x + ((uint64_t)1 << (at - 1))) >> at); }

/* pair[code byte] = value of k in the lower, value of k + 16 in the upper lane */
static inline void nb_pair_table(uint64_t pair[256], const int8_t *table) {
    for (int code = 0; code < 256; code++) pair[code] = nb_lane(table[code & 15], 0) + nb_lane(table[code >> 4], 32);
}

/* I of 16 rows for one token, 4 bits, `rows` rows at a time so that the sums are registers */
static inline __attribute__((always_inline)) void nb_sums4(int32_t sum[NB_PANEL], const uint8_t *codes, const uint64_t *pair,
                                                           const int8_t *q, const uint8_t *low, const uint8_t *high, int group) {
    enum { SUMS = 8 };
    const int rows = group == 16 ? SUMS / 2 : SUMS;
    for (int r0 = 0; r0 < NB_PANEL; r0 += rows) {
        uint64_t both[SUMS] = {0}, second[SUMS] = {0};
        for (int i = 0; i < 4; i++) {
            const uint8_t *at = codes + r0 * 4 + i;
            NB_ROLLED
            for (int k = i; k < 16; k += 4, at += 4 * NB_PANEL) {
                const uint64_t q0 = nb_lane(q[k], 0), q1 = nb_lane(q[16 + k], 0);
                NB_UNROLL
                for (int r = 0; r < rows; r++) {
                    const uint64_t v = pair[at[4 * r]];
                    both[r] += v * (group == 16 ? q0 : q1 + (q0 << 32));
                    if (group == 16) second[r] += v * q1;
                }
            }
        }
        for (int r = 0; r < rows; r++)
            sum[r0 + r] = group == 16 ? (int32_t)both[r] * low[r0 + r] + nb_top(second[r], 32) * high[r0 + r]
                                      : nb_top(both[r], 32) * low[r0 + r];
    }
}

/* The same for 8 bits; bias: -64 * sum(q) */
static inline __attribute__((always_inline)) void nb_sums8(int32_t sum[NB_PANEL], const uint8_t *codes, const int8_t *q,
                                                           int32_t bias, const uint8_t *scale) {
    uint64_t two[NB_PANEL / 2] = {0};
    for (int j = 0; j < 8; j++) {
        NB_UNROLL
        for (int r = 0; r < NB_PANEL; r += 2) {
            uint64_t bytes; /* the format is little-endian */
            memcpy(&bytes, __builtin_assume_aligned(codes + (j * NB_PANEL + r) * 4, 8), sizeof bytes);
            bytes ^= 0x8080808080808080u;
            for (int i = 0; i < 4; i++) two[r / 2] += (bytes >> 8 * i & 0x000000ff000000ffu) * nb_lane(q[4 * j + i], 0);
        }
    }
    for (int r = 0; r < NB_PANEL; r += 2) {
        sum[r] = ((int32_t)two[r / 2] + 2 * bias) * scale[r];
        sum[r + 1] = (nb_top(two[r / 2], 32) + 2 * bias) * scale[r + 1];
    }
}

/* 16 int8 as words of three; with `turned`, the other way round and a bit higher, the second factor of a product: the unwanted
 * products above the top lane then start at bit 64. */
static inline void nb_words(uint64_t word[NB_WORDS], const int8_t *x, int turned) {
    for (int m = 0; m < NB_WORDS; m++) {
        word[m] = 0;
        for (int i = 0; i < 3 && 3 * m + i < 16; i++)
            word[m] += nb_lane(x[3 * m + i], turned ? NB_TOP - NB_LANE * i : NB_LANE * i);
    }
}

/* I of 16 rows for one token of a tile, from a block's words */
static inline __attribute__((always_inline)) void nb_sums_of_words(int32_t sum[NB_PANEL],
                                                                   const uint64_t words[NB_PANEL][2][NB_WORDS], const int8_t *q,
                                                                   const uint8_t *low, const uint8_t *high, int group) {
    uint64_t turned[2][NB_WORDS];
    for (int half = 0; half < 2; half++) nb_words(turned[half], q + 16 * half, 1);
    for (int r = 0; r < NB_PANEL; r++) {
        uint64_t dot[2] = {0};
        for (int half = 0; half < 2; half++)
            for (int m = 0; m < NB_WORDS; m++) dot[half] += words[r][half][m] * turned[half][m];
        sum[r] = group == 16 ? nb_top(dot[0], NB_TOP) * low[r] + nb_top(dot[1], NB_TOP) * high[r]
                             : nb_top(dot[0] + dot[1], NB_TOP) * low[r];
    }
}

#endif
