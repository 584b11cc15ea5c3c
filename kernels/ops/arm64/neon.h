/* SPDX-License-Identifier: Apache-2.0
 * What the NEON kernels share: math.h four lanes at a time, values of packed codes, group scales. */
#ifndef NB_OPS_NEON_H
#define NB_OPS_NEON_H

#ifndef __ARM_NEON
#error "a NEON kernel compiled without the flags of its level"
#endif

#include <arm_neon.h>

#include "ops/scalar/math.h"
#include "ops/unroll.h"

/* nb_exp of math.h; maximum and minimum differ from its comparisons only on NaN. */
NB_INLINE float32x4_t nb_exp4(float32x4_t x) {
    x = vmaxq_f32(x, vdupq_n_f32(-87.0f));
    x = vminq_f32(x, vdupq_n_f32(88.0f));
    const float32x4_t round = vdupq_n_f32(NB_ROUND);
    const float32x4_t t = vaddq_f32(vmulq_f32(x, vdupq_n_f32(1.44269504f)), round);
    const float32x4_t n = vsubq_f32(t, round);
    const int32x4_t k = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(NB_ROUND_BITS - 127));
    float32x4_t r = vsubq_f32(x, vmulq_f32(n, vdupq_n_f32(0.693359375f)));
    r = vsubq_f32(r, vmulq_f32(n, vdupq_n_f32(-2.12194440e-4f)));
    float32x4_t p = vdupq_n_f32(1.9875691500e-4f);
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(1.3981999507e-3f));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(8.3334519073e-3f));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(4.1665795894e-2f));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(1.6666665459e-1f));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(5.0000001201e-1f));
    float32x4_t y = vmulq_f32(p, vmulq_f32(r, r));
    y = vaddq_f32(y, r);
    y = vaddq_f32(y, vdupq_n_f32(1.0f));
    return vmulq_f32(y, vreinterpretq_f32_s32(vshlq_n_s32(k, 23)));
}

/* nb_softcap of four numbers */
NB_INLINE float32x4_t nb_softcap4(float32x4_t x, float cap) {
    const float32x4_t u = vdivq_f32(x, vdupq_n_f32(cap)), one = vdupq_n_f32(1.0f);
    const float32x4_t e = nb_exp4(vaddq_f32(u, u));
    return vmulq_f32(vdupq_n_f32(cap), vdivq_f32(vsubq_f32(e, one), vaddq_f32(e, one)));
}

/* The first two steps of nb_fold: lanes 4v..4v+3 are in lane[v], 16 become 4. */
NB_INLINE float32x4_t nb_fold_to4(const float32x4_t lane[4]) {
    return vaddq_f32(vaddq_f32(lane[0], lane[2]), vaddq_f32(lane[1], lane[3]));
}

/* The largest |x| of a run; a tail goes one by one. */
NB_INLINE float nb_largest(const float *x, uint32_t n) {
    float32x4_t top = vdupq_n_f32(0);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + i)));
    float m = vmaxvq_f32(top);
    for (; i < n; i++) m = nb_abs(x[i]) > m ? nb_abs(x[i]) : m;
    return m;
}

/* nb_to_int8 of math.h; fcvtns rounds to nearest even, as adding 1.5 * 2^23 does. */
NB_INLINE float nb_to_int8x8(int8_t *q, const float *x, uint32_t n) {
    const float m = nb_largest(x, n), inverse = m < NB_TINY ? 0.0f : 127.0f / m;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
        const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse));
        vst1_s8(q + i, vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high))));
    }
    for (; i < n; i++) q[i] = (int8_t)nb_rne(x[i] * inverse);
    return m < NB_TINY ? 0.0f : m / 127.0f;
}

/* Four half floats */
NB_INLINE float32x4_t nb_halves4(const void *p) {
    uint16x4_t bits;
    memcpy(&bits, p, sizeof bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}

/* fl(f16 row_scale * row_mul) of rows 4g..4g+3 of a panel */
NB_INLINE float32x4_t nb_row_factors4(const struct nb_mat *w, const uint8_t *panel, int g) {
    return vmulq_n_f32(nb_halves4(panel + 8 * g), w->row_mul);
}

/* Values of the low and of the high nibbles of 16 codes; a register of layout p16x4 is 4 rows x 4 k. */
NB_INLINE int8x16_t nb_low16(int8x16_t table, uint8x16_t codes) { return vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15))); }
NB_INLINE int8x16_t nb_high16(int8x16_t table, uint8x16_t codes) { return vqtbl1q_s8(table, vshrq_n_u8(codes, 4)); }

/* Bytes 4g..4g+3 of 16 group scales as dwords: a look-up whose index is out of range gives 0. */
NB_INLINE int32x4_t nb_scales4(uint8x16_t scales, uint32_t g) {
    const uint32x4_t index = {0xffffff00u + 4 * g, 0xffffff01u + 4 * g, 0xffffff02u + 4 * g, 0xffffff03u + 4 * g};
    return vreinterpretq_s32_u8(vqtbl1q_u8(scales, vreinterpretq_u8_u32(index)));
}

/* Each quad of 32 activations in all four lanes */
NB_INLINE void nb_repeat4(int8x16_t four[8], const int8_t *q) {
    const int32x4_t q0 = vreinterpretq_s32_s8(vld1q_s8(q)), q1 = vreinterpretq_s32_s8(vld1q_s8(q + 16));
    NB_UNROLL
    for (int j = 0; j < 8; j++) four[j] = vreinterpretq_s8_s32(vdupq_n_s32(j < 4 ? q0[j] : q1[j - 4]));
}

/* sum[0]: rows 0 and 1 of a group of four, sum[1]: rows 2 and 3 */
NB_INLINE void nb_add_products(int16x8_t sum[2], int8x16_t v, int8x16_t a, int first) {
    sum[0] = first ? vmull_s8(vget_low_s8(v), vget_low_s8(a)) : vmlal_s8(sum[0], vget_low_s8(v), vget_low_s8(a));
    sum[1] = first ? vmull_high_s8(v, a) : vmlal_high_s8(sum[1], v, a);
}

#endif
