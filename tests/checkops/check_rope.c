/* SPDX-License-Identifier: Apache-2.0
 * rope: partial rotation, head sizes that are no multiple of a vector. */
#include "checkops.h"

static void one(struct check *c, uint32_t heads, uint32_t head_dim, uint32_t rot, enum fill fill) {
    const size_t n = (size_t)heads * head_dim, half = rot / 2;
    float *have = check_buffer(c, n * sizeof *have), *cos = check_buffer(c, half * sizeof *cos),
          *sin = check_buffer(c, half * sizeof *sin);
    check_fill(c, have, n, fill);
    check_fill(c, cos, half, FILL_NORMAL);
    check_fill(c, sin, half, FILL_NORMAL);
    float *want = check_copy(c, have, n * sizeof *have);
    check_begin(c, c->have->rope_name, "heads %u head_dim %u rot %u %s", heads, head_dim, rot, check_fill_name(fill));
    c->have->rope(have, heads, head_dim, rot, cos, sin);
    c->want->rope(want, heads, head_dim, rot, cos, sin);
    check_same(c, "x", have, want, n * sizeof *have, 4);
    check_free_all(c);
}

static void check(struct check *c) {
    static const uint32_t dims[] = {16, 24, 32, 48, 64, 80, 96, 128, 256};
    for (unsigned i = 0; i < 4 * c->rounds; i++)
        for (int fill = 0; fill < FILLS; fill++) {
            const uint32_t dim = check_pick(c, dims, sizeof dims / sizeof *dims);
            one(c, 1 + check_below(c, 5), dim, check_below(c, 2) ? dim : 2 * check_below(c, dim / 2 + 1), (enum fill)fill);
        }
}

const struct check_op check_rope = {"rope", check, NULL};
