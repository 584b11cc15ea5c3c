/* SPDX-License-Identifier: Apache-2.0
 * attend_join: one to twenty ranges whose maxima differ by nothing, a little or more than exp reaches. */
#include "checkops.h"

static void check(struct check *c) {
    for (unsigned i = 0; i < 16 * c->rounds; i++) {
        const uint32_t head_dim = 1 + check_below(c, 260), n = 1 + check_below(c, 20);
        const size_t stride = head_dim + check_below(c, 40), size = ((n - 1) * stride + head_dim) * sizeof(float);
        float *max = check_buffer(c, n * sizeof *max), *sum = check_buffer(c, n * sizeof *sum), *out = check_buffer(c, size);
        check_fill(c, out, size / sizeof *out, (enum fill)check_below(c, FILLS));
        const float spread = check_below(c, 3) ? 10.0f : 200.0f;
        for (uint32_t r = 0; r < n; r++) {
            max[r] = check_float(c, -spread, spread);
            sum[r] = check_float(c, 1, 256);
        }
        float *have = check_buffer(c, head_dim * sizeof *have), *want = check_buffer(c, head_dim * sizeof *want);
        check_begin(c, c->have->attend_join_name, "head_dim %u ranges %u", head_dim, n);
        c->have->attend_join(have, head_dim, n, max, sum, out, stride);
        c->want->attend_join(want, head_dim, n, max, sum, out, stride);
        check_same(c, "y", have, want, head_dim * sizeof *have, 4);
        check_free_all(c);
    }
}

const struct check_op check_attend_join = {"attend_join", check, NULL};
