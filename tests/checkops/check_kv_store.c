/* SPDX-License-Identifier: Apache-2.0
 * kv_store: both types at every head size; half floats also at every interesting bit pattern (infinities, NaN, ties,
 * subnormals, overflow). */
#include "checkops.h"

#include <string.h>

static void one(struct check *c, uint32_t type, uint32_t head_dim, int fill) {
    const uint32_t ctx = 1 + check_below(c, 4), pos = check_below(c, ctx);
    const size_t size = (size_t)ctx * head_dim * (type == NB_KV_F16 ? 2 : 1),
                 scales = type == NB_KV_F16 ? 0 : ctx * sizeof(float);
    struct nb_kv kv[2];
    for (int i = 0; i < 2; i++) {
        kv[i] = (struct nb_kv){.k = check_buffer(c, size), .v = check_buffer(c, size), .type = type, .head_dim = head_dim};
        kv[i].k_scale = check_buffer(c, scales);
        kv[i].v_scale = check_buffer(c, scales);
        memset(kv[i].k, 0x33, size);
        memset(kv[i].v, 0x33, size);
        memset(kv[i].k_scale, 0x33, scales);
        memset(kv[i].v_scale, 0x33, scales);
    }
    float *k = check_buffer(c, head_dim * sizeof *k), *v = check_buffer(c, head_dim * sizeof *v);
    check_fill(c, k, head_dim, fill < 0 ? FILL_NORMAL : (enum fill)fill);
    check_fill(c, v, head_dim, FILL_NORMAL);
    if (fill < 0) /* bit patterns around everything that half floats round, clip or keep */
        for (uint32_t i = 0; i < head_dim; i++) {
            static const uint32_t from[] = {0x7f800000, 0x7fc12345, 0x477fe000, 0x477ff000, 0x38800000,
                                            0x387fe000, 0x33000000, 0x3f801000, 0x7f812345};
            const uint32_t bits = (check_pick(c, from, sizeof from / sizeof *from) + check_below(c, 3) - 1) | check_below(c, 2)
                                                                                                                  << 31;
            memcpy(&k[i], &bits, sizeof bits);
        }
    nb_kv_store_fn *have = type == NB_KV_F16 ? c->have->kv_store_f16 : c->have->kv_store_i8;
    nb_kv_store_fn *want = type == NB_KV_F16 ? c->want->kv_store_f16 : c->want->kv_store_i8;
    check_begin(c, type == NB_KV_F16 ? c->have->kv_store_f16_name : c->have->kv_store_i8_name, "head_dim %u fill %s", head_dim,
                fill < 0 ? "bit patterns" : check_fill_name((enum fill)fill));
    have(&kv[0], pos, k, v);
    want(&kv[1], pos, k, v);
    check_same(c, "k", kv[0].k, kv[1].k, size, type == NB_KV_F16 ? 2 : 1);
    check_same(c, "v", kv[0].v, kv[1].v, size, type == NB_KV_F16 ? 2 : 1);
    check_same(c, "k_scale", kv[0].k_scale, kv[1].k_scale, scales, 4);
    check_same(c, "v_scale", kv[0].v_scale, kv[1].v_scale, scales, 4);
    check_free_all(c);
}

static void check(struct check *c) {
    static const uint32_t dims[] = {16, 24, 32, 40, 64, 80, 96, 128, 256};
    for (unsigned i = 0; i < 4 * c->rounds; i++) {
        for (int fill = -1; fill < FILLS; fill++) one(c, NB_KV_F16, check_pick(c, dims, sizeof dims / sizeof *dims), fill);
        for (int fill = 0; fill < FILLS; fill++) one(c, NB_KV_I8, check_pick(c, dims, sizeof dims / sizeof *dims), fill);
    }
}

const struct check_op check_kv_store = {"kv_store", check, NULL};
