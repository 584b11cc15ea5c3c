/* SPDX-License-Identifier: Apache-2.0
 * gemv and gemm in all formats: whole output buffers are compared, so a write outside the panels, tiles and tokens of
 * the call shows as well. */
#include "checkops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static uint32_t up(uint32_t n, uint32_t to) { return (n + to - 1) / to; }

struct nb_mat check_matrix(struct check *c, enum nb_format format, uint32_t rows, uint32_t cols, uint32_t group_shift) {
    static const int8_t wide[16] = {-63, -49, -39, -30, -23, -16, -9, -3, 3, 9, 16, 23, 30, 39, 49, 63};
    struct nb_mat w = {
        .rows = rows, .cols = cols, .panels = up(rows, 16), .blocks = up(cols, 32), .group_shift = group_shift, .format = format};
    w.groups = up(cols, nb_format_rows[format].group << group_shift);
    w.code_offset = up(32 + 16 * w.groups, 64) * 64;
    w.panel_stride = w.code_offset + (size_t)w.blocks * 64 * nb_format_rows[format].bits;
    w.row_mul = 1.0f;
    for (uint32_t i = check_below(c, 40); i > 0; i--) w.row_mul *= 0.5f;
    const size_t size = w.panel_stride * w.panels;
    uint8_t *data = check_buffer(c, size);
    w.data = data;
    const uint32_t kind = check_below(c, 4); /* 0: extremes only, 1: any table, else the usual one */
    const int table = nb_format_rows[format].bits <= 4;
    if (table)
        for (int i = 0; i < 16; i++)
            w.table[i] = kind > 1 ? wide[i] : (int8_t)(kind == 1 ? (int)check_below(c, 128) - 64 : i % 2 ? 63 : -64);
    memset(data, 0, size);
    for (uint32_t p = 0; p < w.panels; p++) {
        uint8_t *panel = data + p * w.panel_stride;
        for (uint32_t r = 0; r < 16 && 16 * p + r < rows; r++) {
            const uint16_t half =
                (uint16_t)(check_below(c, 8) ? check_below(c, 0x7c00) : check_below(c, 0x400)); /* also subnormals */
            memcpy(panel + 2 * r, &half, 2);
            for (uint32_t g = 0; g < w.groups; g++) panel[32 + 16 * g + r] = (uint8_t)(kind ? check_below(c, 256) : 255);
        }
        for (size_t i = w.code_offset; i < w.panel_stride; i++) {
            if (i % 64 / 4 + 16 * p >= rows) continue;
            uint8_t code = (uint8_t)check_random(c);
            if (!table) code = (uint8_t)(int8_t)(kind ? (int)check_below(c, 255) - 127 : code & 1 ? 127 : -127);
            panel[i] = code;
        }
    }
    return w;
}

static struct nb_act activations(struct check *c, uint32_t cols, uint32_t tokens, uint32_t tile) {
    struct nb_act a = {.blocks = up(cols, 32), .tile = tile, .tokens = tokens};
    const size_t entries = (size_t)up(tokens, tile) * tile * a.blocks;
    a.q = check_buffer(c, entries * 32);
    a.scale = check_buffer(c, entries * sizeof *a.scale);
    a.bias = check_buffer(c, entries * sizeof *a.bias);
    memset(a.q, 0, entries * 32);
    memset(a.scale, 0, entries * sizeof *a.scale);
    memset(a.bias, 0, entries * sizeof *a.bias);
    const uint32_t kind = check_below(c, 4);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t b = 0; b < a.blocks; b++) {
            const size_t e = (size_t)(t / tile * a.blocks + b) * tile + t % tile;
            if (check_below(c, 16) == 0) continue; /* a block of zeros */
            a.scale[e] = check_float(c, 0.001f, 1.0f) * (kind == 1 ? 1e-38f : kind == 2 ? 1e20f : 1.0f);
            int32_t sum = 0;
            const int sign = check_below(c, 2) ? 1 : -1;
            for (uint32_t k = 0; k < 32 && 32 * b + k < cols; k++) {
                a.q[32 * e + k] = (int8_t)(kind == 0 ? sign * 127 : (int)check_below(c, 255) - 127);
                sum += a.q[32 * e + k];
            }
            a.bias[e] = -64 * sum;
        }
    return a;
}

static const char *name_of(const struct nb_hal *hal, enum nb_format format, uint32_t tile) {
    const char *const names[NB_FORMATS][2] = {
#define NB_FORMAT(number, NAME, name, bits, group) [number] = {hal->gemv_##name##_name, hal->gemm_##name##_name},
#include "hal/formats.def"
#undef NB_FORMAT
    };
    return names[format][tile != 1];
}

static void one(struct check *c, enum nb_format format, uint32_t rows, uint32_t cols, uint32_t tokens, uint32_t tile) {
    const struct nb_format_row *row = &nb_format_rows[format];
    const uint32_t shift = row->group == 16 ? 0 : check_below(c, 3), tiles = up(tokens, tile);
    const struct nb_mat w = check_matrix(c, format, rows, cols, shift);
    const struct nb_act a = activations(c, cols, tokens, tile);
    const size_t ldy = w.panels * 16 + 8 * check_below(c, 3), n = (tokens - 1) * ldy + w.panels * 16;
    float *have = check_buffer(c, n * sizeof *have), *want = check_buffer(c, n * sizeof *want);
    memset(have, 0x11, n * sizeof *have);
    memset(want, 0x11, n * sizeof *want);
    uint32_t p0 = 0, p1 = w.panels, t0 = 0, t1 = tiles;
    if (check_below(c, 2)) {
        p0 = check_below(c, w.panels), p1 = p0 + check_below(c, w.panels - p0 + 1);
        t0 = check_below(c, tiles), t1 = t0 + check_below(c, tiles - t0 + 1);
    }
    check_begin(c, name_of(c->have, format, tile), "%s rows %u cols %u tokens %u group %u panels %u..%u tiles %u..%u", row->name,
                rows, cols, tokens, row->group << shift, p0, p1, t0, t1);
    (tile == 1 ? c->have->gemv : c->have->gemm)[format](&w, &a, have, ldy, p0, p1, t0, t1);
    (tile == 1 ? c->want->gemv : c->want->gemm)[format](&w, &a, want, ldy, p0, p1, t0, t1);
    check_same(c, "y", have, want, n * sizeof *have, sizeof *have);
    check_free_all(c);
}

static void check(struct check *c) {
    static const uint32_t cols[] = {1, 15, 16, 17, 31, 32, 33, 48, 64, 96, 100, 128, 160, 272, 576, 1048},
                          some[] = {1, 2, 5, 8, 9, 12, 15, 16, 17, 20, 24, 25, 28, 32, 33, 50, 65, 130};
    for (int format = NB_F32 + 1; format < NB_FORMATS; format++) {
        for (unsigned i = 0; i < 6 * c->rounds; i++) {
            one(c, (enum nb_format)format, 1 + check_below(c, 90), check_pick(c, cols, COUNT(cols)), 1 + check_below(c, 3), 1);
            one(c, (enum nb_format)format, 1 + check_below(c, 200), check_pick(c, cols, COUNT(cols)),
                check_pick(c, some, COUNT(some)), NB_TILE);
        }
        one(c, (enum nb_format)format, 16, 4128, 1, 1); /* more blocks than any kernel keeps at a time */
        one(c, (enum nb_format)format, 16, 4128, 18, NB_TILE);
    }
}

struct product {
    nb_gemm_fn *fn;
    struct nb_mat w;
    struct nb_act a;
    float *y;
};

static void run(void *context) {
    struct product *p = context;
    p->fn(&p->w, &p->a, p->y, p->w.panels * 16, 0, p->w.panels, 0, up(p->a.tokens, p->a.tile));
}

static void bench_one(const struct nb_hal *hal, enum nb_format format, uint32_t rows, uint32_t tokens, uint32_t tile) {
    struct check c = {.want = hal, .have = hal, .state = 1};
    struct product p = {.fn = (tile == 1 ? hal->gemv : hal->gemm)[format]};
    p.w = check_matrix(&c, format, rows, 4096, 0);
    p.a = activations(&c, 4096, tokens, tile);
    p.y = calloc((size_t)rows * tokens, sizeof *p.y);
    if (!p.y) exit(4);
    char what[64];
    snprintf(what, sizeof what, "%u x 4096, %u token%s", rows, tokens, tokens == 1 ? "" : "s");
    bench_row(name_of(hal, format, tile), what, tile == 1 ? (double)(p.w.panel_stride * p.w.panels) : 0,
              2.0 * rows * 4096 * tokens, tile == 1 ? LIMIT_READ : LIMIT_STEPS, run, &p);
    free(p.y);
    check_free_all(&c);
}

static void bench(const struct nb_hal *hal) {
    for (int format = NB_F32 + 1; format < NB_FORMATS; format++) bench_one(hal, (enum nb_format)format, 32768, 1, 1);
    for (int format = NB_F32 + 1; format < NB_FORMATS; format++) bench_one(hal, (enum nb_format)format, 512, 256, NB_TILE);
}

const struct check_op check_matmul = {"matmul", check, bench};
