/* SPDX-License-Identifier: Apache-2.0
 * One row of a packed matrix as floats: y[k] = row_factor * (group_scale * value) * scale. One row a token, so it stays
 * plain on every level. Reads layout p16x4 in all three formats. */
#include "ops/scalar/matmul.h"

nb_embed_fn nb_embed_f32_p16x4__scalar;
void nb_embed_f32_p16x4__scalar(float *y, const struct nb_mat *w, uint32_t row, float scale) {
    const uint8_t *panel = w->data + row / NB_PANEL * w->panel_stride;
    const uint8_t *group_scale = panel + 2 * NB_PANEL, *codes = panel + w->code_offset;
    const uint32_t r = row % NB_PANEL;
    const float row_factor = nb_row_factor(w, panel, (int)r);
    for (uint32_t k = 0; k < w->cols; k++) {
        const uint32_t b = k / NB_BLOCK, kb = k % NB_BLOCK, quad = w->format == NB_Q8G32S8 ? kb : kb % 16;
        const uint32_t at = (quad / 4 * NB_PANEL + r) * 4 + quad % 4;
        const uint32_t group = w->format == NB_Q4G16S8 ? k / 16 : b >> w->group_shift;
        int32_t value;
        if (w->format == NB_Q8G32S8) value = (int8_t)codes[(size_t)b * 512 + at];
        else value = w->table[codes[(size_t)b * 256 + at] >> (kb < 16 ? 0 : 4) & 15];
        y[k] = row_factor * (float)(group_scale[(size_t)group * NB_PANEL + r] * value) * scale;
    }
}
