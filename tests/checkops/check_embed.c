/* SPDX-License-Identifier: Apache-2.0
 * embed: every format, any row, columns that end inside a block. Against the scalar kernel, and the scalar kernel
 * against the matrix product with a one-hot activation: two programs that read the layout must agree on it. */
#include "checkops.h"

#include <string.h>

static void one(struct check *c, enum nb_format format) {
    const uint32_t rows = 1 + check_below(c, 60), cols = 1 + check_below(c, 300), row = check_below(c, rows);
    const struct nb_mat w = check_matrix(c, format, rows, cols, nb_format_rows[format].group == 16 ? 0 : check_below(c, 3));
    float *have = check_buffer(c, cols * sizeof *have), *want = check_buffer(c, cols * sizeof *want);
    check_begin(c, c->have->embed_name, "format %d rows %u cols %u row %u", format, rows, cols, row);
    c->have->embed(have, &w, row, 1.5f);
    c->want->embed(want, &w, row, 1.5f);
    check_same(c, "y", have, want, cols * sizeof *have, 4);

    const uint32_t k = check_below(c, cols), b = k / 32;
    struct nb_act a = {.blocks = w.blocks, .tile = 1, .tokens = 1};
    a.q = check_buffer(c, (size_t)a.blocks * 32);
    a.scale = check_buffer(c, a.blocks * sizeof(float));
    a.bias = check_buffer(c, a.blocks * sizeof(int32_t));
    memset(a.q, 0, (size_t)a.blocks * 32);
    memset(a.scale, 0, a.blocks * sizeof(float));
    memset(a.bias, 0, a.blocks * sizeof(int32_t));
    a.q[k] = 1;
    a.scale[b] = 1.0f;
    a.bias[b] = -64;
    const size_t n = (size_t)w.panels * 16;
    float *y = check_buffer(c, n * sizeof *y);
    c->have->gemv[format](&w, &a, y, n, 0, w.panels, 0, 1);
    c->have->embed(have, &w, row, 1.0f);
    check_same(c, "one column", &y[row], &have[k], 4, 4);
    check_free_all(c);
}

static void check(struct check *c) {
    for (unsigned i = 0; i < 8 * c->rounds; i++)
        for (int format = NB_F32 + 1; format < NB_FORMATS; format++) one(c, (enum nb_format)format);
}

const struct check_op check_embed = {"embed", check, NULL};
