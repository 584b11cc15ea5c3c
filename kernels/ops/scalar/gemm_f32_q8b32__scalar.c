/* SPDX-License-Identifier: Apache-2.0
 * Matrix product in plain C, tiles of NB_TILE tokens: see ops/scalar/matmul.h. */
#include "ops/scalar/matmul.h"

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__scalar;
void nb_gemm_f32_q8b32_q4g16s8p16x4__scalar(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                            uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_matmul(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16, NB_TILE);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__scalar;
void nb_gemm_f32_q8b32_q4g32s8p16x4__scalar(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                            uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_matmul(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32, NB_TILE);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__scalar;
void nb_gemm_f32_q8b32_q8g32s8p16x4__scalar(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                            uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    nb_matmul(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32, NB_TILE);
}
