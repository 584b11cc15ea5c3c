/* SPDX-License-Identifier: Apache-2.0
 * add. */
#include "checkops.h"

static void check(struct check *c) {
    for (unsigned i = 0; i < 4 * c->rounds; i++)
        for (int fill = 0; fill < FILLS; fill++) {
            const uint32_t n = 1 + check_below(c, 100);
            float *have = check_buffer(c, n * sizeof *have), *x = check_buffer(c, n * sizeof *x);
            check_fill(c, have, n, (enum fill)fill);
            check_fill(c, x, n, FILL_NORMAL);
            float *want = check_copy(c, have, n * sizeof *have);
            check_begin(c, c->have->add_name, "n %u %s", n, check_fill_name((enum fill)fill));
            c->have->add(have, x, n);
            c->want->add(want, x, n);
            check_same(c, "y", have, want, n * sizeof *have, 4);
            check_free_all(c);
        }
}

const struct check_op check_add = {"add", check, NULL};
