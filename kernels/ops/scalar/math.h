/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic shared by all levels: exp, half floats, rounding to int8, the 16-lane fold. It defines the answer; vector
 * code does the same operations in the same order, and calls these for its tails. */
#ifndef NB_OPS_MATH_H
#define NB_OPS_MATH_H

#include <stdint.h>
#include <string.h>

#include "hal/hal.h"

enum { NB_LANES = 16 };

/* Adding 1.5 * 2^23 leaves a number below 2^22 rounded to an integer, ties to even, in the low bits. */
#define NB_ROUND 12582912.0f
#define NB_ROUND_BITS 0x4B400000

/* A block whose largest |x| is below this (2^-100) is stored as zeros, so that 127 / m stays finite. */
#define NB_TINY 0x1p-100f

static inline float nb_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t nb_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float nb_abs(float x) { return nb_float(nb_bits(x) & 0x7fffffffu); }

/* |x| < 2^22; never a cast, whose result outside int32 differs between machines. */
static inline int32_t nb_rne(float x) { return (int32_t)(nb_bits(x + NB_ROUND) - NB_ROUND_BITS); }

/* e^x by n = rne(x / ln 2), Cody-Waite reduction and a degree-5 polynomial (the classic single-precision constants). */
static inline float nb_exp(float x) {
    x = x > -87.0f ? x : -87.0f;
    x = x < 88.0f ? x : 88.0f;
    const float t = x * 1.44269504f + NB_ROUND;
    const float n = t - NB_ROUND;
    const uint32_t k = nb_bits(t) - NB_ROUND_BITS;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float z = r * r;
    float y = p * z;
    y = y + r;
    y = y + 1.0f;
    return y * nb_float((k + 127u) << 23);
}

/* cap * tanh(x / cap): scores and logits kept below a cap */
static inline float nb_softcap(float x, float cap) {
    const float u = x / cap, e = nb_exp(u + u);
    return cap * ((e - 1.0f) / (e + 1.0f));
}

/* x / (1 + e^-x) */
static inline float nb_silu(float x) { return x / (1.0f + nb_exp(-x)); }

/* The tanh form of GELU, written with exp: x / (1 + e^-2u) */
static inline float nb_gelu(float x) {
    const float u = 0.7978845608f * (x + 0.044715f * (x * x * x));
    return x / (1.0f + nb_exp(-2.0f * u));
}

static inline float nb_from_f16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    if (magnitude > 0x7c00u) return nb_float(sign | 0x7fc00000u | magnitude << 13); /* NaN, made quiet */
    if (magnitude == 0x7c00u) return nb_float(sign | 0x7f800000u);
    if (magnitude >= 0x0400u) return nb_float(sign | ((magnitude << 13) + 0x38000000u));
    return nb_float(sign | nb_bits((float)(int32_t)magnitude * 0x1p-24f)); /* subnormal: exact */
}

/* Round to nearest even; 65520 and above become infinity. */
static inline uint16_t nb_to_f16(float x) {
    const uint32_t sign = nb_bits(x) >> 16 & 0x8000u, magnitude = nb_bits(x) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x03ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* below 2^-14: 0.5 has the unit in the last place of the subnormals */
        return (uint16_t)(sign | (nb_bits(nb_float(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0x0fffu + (magnitude >> 13 & 1u)) >> 13));
}

/* lane[i] += lane[i + 8], then 4, 2, 1; spoils the lanes */
static inline float nb_fold(float lane[NB_LANES]) {
    for (int half = NB_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* One run of values as int8 with one scale: rne(x * (127 / max|x|)), -127..127. Returns max|x| / 127. */
static inline float nb_to_int8(int8_t *q, const float *x, uint32_t n) {
    float m = 0;
    for (uint32_t i = 0; i < n; i++) m = nb_abs(x[i]) > m ? nb_abs(x[i]) : m;
    const float inverse = m < NB_TINY ? 0.0f : 127.0f / m;
    for (uint32_t i = 0; i < n; i++) q[i] = (int8_t)nb_rne(x[i] * inverse);
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

#endif
