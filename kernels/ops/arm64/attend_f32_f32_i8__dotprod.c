/* SPDX-License-Identifier: Apache-2.0
 * Attention over one range of int8 keys and values, SDOT: ops/arm64/attend_i8.h with a step of one instruction.
 * On paper per 16 channels of four queries and four keys, 256 products:
 *   i8: 8 ldr, 16 sdot, 4 (two pointers, compare, branch) = 28 instructions per 256
 * Needs: head_dim a multiple of 8 (else the scalar kernel runs). */
#include "ops/arm64/dotprod.h"

#include "ops/arm64/attend_i8.h"

NB_INLINE int32x4_t dot16(int32x4_t acc, int8x16_t k, int8x16_t q) { return vdotq_s32(acc, k, q); }

NB_INLINE void scores(const struct nb_kv *kv, const struct nb_attention *a, const struct nb_four *f, uint32_t low, uint32_t high,
                      int queries) {
    nb_scores(kv, a, f, low, high, queries, dot16);
}

NB_ALONE(scores_alone, scores)

NB_INLINE void attend(const struct nb_kv *kv, const struct nb_attention *a, struct nb_four *f, int queries) {
    nb_attend_i8(kv, a, f, queries, scores, scores_alone);
}

nb_attend_fn nb_attend_f32_f32_i8__scalar, nb_attend_f32_f32_i8__dotprod;
void nb_attend_f32_f32_i8__dotprod(const struct nb_kv *kv, const struct nb_attention *a) {
    if (kv->head_dim % 8) {
        nb_attend_f32_f32_i8__scalar(kv, a);
        return;
    }
    NB_ATTEND_BY_FOUR(attend)
}
