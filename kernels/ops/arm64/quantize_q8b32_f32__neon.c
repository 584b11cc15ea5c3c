/* SPDX-License-Identifier: Apache-2.0
 * Activations to int8, NEON, one block of 32 at a time in eight registers; fcvtns rounds to nearest even, as adding
 * 1.5 * 2^23 does, and narrowing keeps the low byte. */
#include "ops/arm64/neon.h"

nb_quantize_fn nb_quantize_q8b32_f32__neon;
void nb_quantize_q8b32_f32__neon(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x, uint32_t n) {
    for (uint32_t b = block0; b < block1; b++) {
        const size_t e = ((size_t)(token / a->tile) * a->blocks + b) * a->tile + token % a->tile;
        const uint32_t at = b * NB_BLOCK;
        float tail[NB_BLOCK];
        const float *from = tail;
        if (at + NB_BLOCK <= n) {
            from = x + at;
        } else {
            for (uint32_t i = 0; i < NB_BLOCK; i++) tail[i] = at + i < n ? x[at + i] : 0.0f;
        }
        float32x4_t v[8], top[4];
        NB_UNROLL
        for (int i = 0; i < 8; i++) v[i] = vld1q_f32(from + 4 * i);
        NB_UNROLL
        for (int i = 0; i < 4; i++) top[i] = vmaxq_f32(vabsq_f32(v[i]), vabsq_f32(v[i + 4]));
        const float m = vmaxvq_f32(vmaxq_f32(vmaxq_f32(top[0], top[1]), vmaxq_f32(top[2], top[3])));
        const float inverse = m < NB_TINY ? 0.0f : 127.0f / m;
        int16x8_t words[4];
        NB_UNROLL
        for (int i = 0; i < 4; i++)
            words[i] = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[2 * i], inverse))),
                                    vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[2 * i + 1], inverse))));
        vst1q_s8(a->q + e * NB_BLOCK, vcombine_s8(vmovn_s16(words[0]), vmovn_s16(words[1])));
        vst1q_s8(a->q + e * NB_BLOCK + 16, vcombine_s8(vmovn_s16(words[2]), vmovn_s16(words[3])));
        a->scale[e] = m < NB_TINY ? 0.0f : m / 127.0f;
        a->bias[e] = -64 * vaddvq_s16(vaddq_s16(vaddq_s16(words[0], words[1]), vaddq_s16(words[2], words[3])));
    }
}
