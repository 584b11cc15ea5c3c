/* SPDX-License-Identifier: Apache-2.0
 * Matrix times one token, RVV, all formats: y[r] = row_factor * sum over blocks of (float)I * scale.
 * Reads layout p16x4 as it lies. A quad of k of 16 rows is 64 bytes, all four registers of an e8 vector at VLEN 128; at
 * VLEN 256 two panels go together, from VLEN 512 on four, a register or two each, so the work a panel falls with VLEN.
 * Bytes meet their four activations, repeated in every four lanes (vmv.v.x at e32), in vwmacc.vv; the four lanes of a row
 * are added up once a half or whole block, by narrowing shifts at e32 and e64. Transposing a quad first
 * would save that, but takes six narrowing shifts and four times as many masks, products and activations, of a register each.
 * 4 bits: vrgather looks values up, one register at a time (its cost grows with the square of the registers); four products
 * fit int16. 8 bits: two products do, then they are added up in int32.
 * On paper, a block of 32 k by 16 * P rows (P panels; 512 * P products):
 *   4 bits, groups of 32 and more: 4 * (P vle8, vand, vsrl, 8 vrgather, 2 vmv, 2 vwmacc), 13 to add lanes, 2 P for the scales, 4
 *     for the float sum, 30 vsetvli (35 with P > 1), 15 + 5 P scalar: 129 at VLEN 128 (0.25 a product), 145 at 256 (0.14), 167
 *     from 512 on (0.08). clang 22: 135, 151, 176.
 *   4 bits, groups of 16: codes are read for each nibble: 138, 167, 211. clang 22: 149, 177, 232.
 *   8 bits: 8 P vle8, 8 vmv, 8 vwmacc, 18 to add lanes, 2 P, 4, 26 or 30 vsetvli, 15 + 9 P scalar: 98 (0.19), 121 (0.12), 159
 *     (0.08). clang 22: 104, 122, 167.
 * tests/integration/test_instruction_count_riscv64.py counts them. Fits 32 registers only in the order that NB_AFTER keeps.
 * Needs: a->tile == 1, a->q a multiple of 4, values -64..63 or -127..127. */
#include "ops/riscv64/rvv.h"

/* Where a block's bytes are: activations, codes and scales of up to four panels that go together */
struct place {
    const int8_t *q;
    const uint8_t *codes[4], *scales[4];
};

/* Loads of codes wait for a vector. */
#define CODES_AFTER(p, done)                                                                                                     \
    for (int n = 0; n < panels; n++) NB_AFTER((p)->codes[n], done)

/* 64 bytes of each panel, side by side in four registers */
NB_INLINE vuint8m4_t codes_of(const struct place *p, size_t offset, int panels) {
    if (panels == 1) return __riscv_vle8_v_u8m4(p->codes[0] + offset, 64);
    if (panels == 2)
        return __riscv_vcreate_v_u8m2_u8m4(__riscv_vle8_v_u8m2(p->codes[0] + offset, 64),
                                           __riscv_vle8_v_u8m2(p->codes[1] + offset, 64));
    return __riscv_vcreate_v_u8m1_u8m4(
        __riscv_vle8_v_u8m1(p->codes[0] + offset, 64), __riscv_vle8_v_u8m1(p->codes[1] + offset, 64),
        __riscv_vle8_v_u8m1(p->codes[2] + offset, 64), __riscv_vle8_v_u8m1(p->codes[3] + offset, 64));
}

/* 16 group scales of each panel, in the lanes where its sums are */
NB_INLINE vint32m4_t scales_of(const struct place *p, size_t offset, int panels) {
    vuint32m4_t s;
    if (panels == 1) {
        s = __riscv_vzext_vf4_u32m4(__riscv_vle8_v_u8m1(p->scales[0] + offset, NB_PANEL), NB_PANEL);
    } else if (panels == 2) {
        s = __riscv_vcreate_v_u32m2_u32m4(
            __riscv_vzext_vf4_u32m2(__riscv_vle8_v_u8mf2(p->scales[0] + offset, NB_PANEL), NB_PANEL),
            __riscv_vzext_vf4_u32m2(__riscv_vle8_v_u8mf2(p->scales[1] + offset, NB_PANEL), NB_PANEL));
    } else {
        s = __riscv_vcreate_v_u32m1_u32m4(
            __riscv_vzext_vf4_u32m1(__riscv_vle8_v_u8mf4(p->scales[0] + offset, NB_PANEL), NB_PANEL),
            __riscv_vzext_vf4_u32m1(__riscv_vle8_v_u8mf4(p->scales[1] + offset, NB_PANEL), NB_PANEL),
            __riscv_vzext_vf4_u32m1(__riscv_vle8_v_u8mf4(p->scales[2] + offset, NB_PANEL), NB_PANEL),
            __riscv_vzext_vf4_u32m1(__riscv_vle8_v_u8mf4(p->scales[3] + offset, NB_PANEL), NB_PANEL));
    }
    return __riscv_vreinterpret_v_u32m4_i32m4(s);
}

/* The sums of panel i to the start of a register group */
NB_INLINE vfloat32m4_t sums_of(vfloat32m4_t total, int i, int panels) {
    if (panels == 1) return total;
    if (panels == 2)
        return __riscv_vlmul_ext_v_f32m2_f32m4(i ? __riscv_vget_v_f32m4_f32m2(total, 1) : __riscv_vget_v_f32m4_f32m2(total, 0));
    vfloat32m1_t one = i == 0   ? __riscv_vget_v_f32m4_f32m1(total, 0)
                       : i == 1 ? __riscv_vget_v_f32m4_f32m1(total, 1)
                       : i == 2 ? __riscv_vget_v_f32m4_f32m1(total, 2)
                                : __riscv_vget_v_f32m4_f32m1(total, 3);
    return __riscv_vlmul_ext_v_f32m1_f32m4(one);
}

/* The four activations at q, whose address is a multiple of 4, in every four lanes */
NB_INLINE vint8m4_t splat(const int8_t *q, size_t vl) {
    typedef int32_t __attribute__((may_alias)) four;
    return __riscv_vreinterpret_v_i32m4_i8m4(__riscv_vmv_v_x_i32m4(*(const four *)(const void *)q, vl));
}

/* table[index], a register at a time */
NB_INLINE vint8m4_t look_up(vint8m1_t table, vuint8m4_t index, size_t vl) {
    return __riscv_vcreate_v_i8m1_i8m4(__riscv_vrgather_vv_i8m1(table, __riscv_vget_v_u8m4_u8m1(index, 0), vl),
                                       __riscv_vrgather_vv_i8m1(table, __riscv_vget_v_u8m4_u8m1(index, 1), vl),
                                       __riscv_vrgather_vv_i8m1(table, __riscv_vget_v_u8m4_u8m1(index, 2), vl),
                                       __riscv_vrgather_vv_i8m1(table, __riscv_vget_v_u8m4_u8m1(index, 3), vl));
}

/* Neighbouring pairs of int16 lanes added up in int32; added to `sum` */
NB_INLINE vint32m8_t pairs(vint16m8_t x, size_t vl) {
    const vint32m8_t both = __riscv_vreinterpret_v_i16m8_i32m8(x);
    return __riscv_vwadd_vv_i32m8(__riscv_vnsra_wx_i16m4(both, 0, vl), __riscv_vnsra_wx_i16m4(both, 16, vl), vl);
}

NB_INLINE vint32m8_t add_pairs(vint32m8_t sum, vint16m8_t x, size_t vl) {
    const vint32m8_t both = __riscv_vreinterpret_v_i16m8_i32m8(x);
    sum = __riscv_vwadd_wv_i32m8(sum, __riscv_vnsra_wx_i16m4(both, 0, vl), vl);
    return __riscv_vwadd_wv_i32m8(sum, __riscv_vnsra_wx_i16m4(both, 16, vl), vl);
}

/* Neighbouring pairs of int32 lanes */
NB_INLINE vint32m4_t rows(vint32m8_t x, size_t vl) {
    const vint64m8_t both = __riscv_vreinterpret_v_i32m8_i64m8(x);
    return __riscv_vadd_vv_i32m4(__riscv_vnsra_wx_i32m4(both, 0, vl), __riscv_vnsra_wx_i32m4(both, 32, vl), vl);
}

/* Half of a 4-bit block, the four products of a lane exact in int16: at group 16 all low or all high nibbles (the codes are
 * read twice), else both nibbles of two quads of k. */
NB_INLINE vint32m4_t half4(struct place *p, vint8m1_t table, size_t vl, int half, int panels, int group) {
    const size_t vl4 = __riscv_vsetvlmax_e8m1();
    vint16m8_t sum = __riscv_vundefined_i16m8();
    vuint8m4_t bytes = __riscv_vundefined_u8m4();
    NB_UNROLL
    for (int i = 0; i < 4; i++) {
        const int j = group == 16 ? i : 2 * half + i / 2, high = group == 16 ? half : i % 2;
        if (group == 16 || !high) bytes = codes_of(p, 64 * (size_t)j, panels);
        vuint8m4_t index = high ? __riscv_vsrl_vx_u8m4(bytes, 4, vl) : __riscv_vand_vx_u8m4(bytes, 15, vl);
        if (i) NB_AFTER_BOTH(p->q, sum, index);
        const vint8m4_t v = look_up(table, index, vl4), four = splat(p->q + 16 * high + 4 * j, vl4);
        sum = i ? __riscv_vwmacc_vv_i16m8(sum, v, four, vl) : __riscv_vwmul_vv_i16m8(v, four, vl);
        if (i < 3 && (group == 16 || high)) CODES_AFTER(p, sum);
    }
    vint32m4_t done = rows(pairs(sum, vl / 2), vl / 4);
    NB_AFTER(p->q, done);
    CODES_AFTER(p, done);
    return done;
}

/* A whole 8-bit block: two products of a lane are exact in int16. */
NB_INLINE vint32m4_t block8(struct place *p, size_t vl, int panels) {
    const size_t vl4 = __riscv_vsetvlmax_e8m1();
    vint32m8_t quads = __riscv_vundefined_i32m8();
    NB_UNROLL
    for (int j = 0; j < 8; j += 2) {
        const vint8m4_t u = __riscv_vreinterpret_v_u8m4_i8m4(codes_of(p, 64 * (size_t)j, panels));
        vint16m8_t two = __riscv_vwmul_vv_i16m8(u, splat(p->q + 4 * j, vl4), vl);
        NB_AFTER(p->q, two);
        CODES_AFTER(p, two);
        const vint8m4_t v = __riscv_vreinterpret_v_u8m4_i8m4(codes_of(p, 64 * (size_t)j + 64, panels));
        two = __riscv_vwmacc_vv_i16m8(two, v, splat(p->q + 4 * j + 4, vl4), vl);
        quads = j ? add_pairs(quads, two, vl / 2) : pairs(two, vl / 2);
        NB_AFTER(p->q, quads);
        CODES_AFTER(p, quads);
    }
    return rows(quads, vl / 4);
}

NB_INLINE void run(const struct nb_mat *w, const struct nb_act *a, float *y, size_t t, size_t panel, int panels, int bits,
                   int group) {
    const size_t vl4 = __riscv_vsetvlmax_e8m1(), vl = panels == 1 ? 64 : 4 * vl4;
    const vint8m1_t table = __riscv_vle8_v_i8m1(w->table, 16);
    const size_t blocks = w->blocks, shift = w->group_shift;
    const float *scale = a->scale + t * blocks;
    struct place p = {.q = a->q + t * blocks * NB_BLOCK};
    for (int i = 0; i < panels; i++) {
        p.scales[i] = w->data + (panel + (size_t)i) * w->panel_stride;
        p.codes[i] = p.scales[i] + w->code_offset;
    }
    vfloat32m4_t total = __riscv_vfmv_v_f_f32m4(0, vl / 4);
    for (size_t b = 0; b < blocks; b++) {
        const size_t at = 2 * NB_PANEL + (group == 16 ? 2 * b : b >> shift) * NB_PANEL;
        vint32m4_t sum;
        if (bits == 8) {
            sum = __riscv_vmul_vv_i32m4(block8(&p, vl, panels), scales_of(&p, at, panels), vl / 4);
        } else if (group == 16) {
            sum = __riscv_vmul_vv_i32m4(half4(&p, table, vl, 0, panels, 16), scales_of(&p, at, panels), vl / 4);
            const vint32m4_t high = half4(&p, table, vl, 1, panels, 16);
            sum = __riscv_vmacc_vv_i32m4(sum, high, scales_of(&p, at + NB_PANEL, panels), vl / 4);
        } else {
            const vint32m4_t first = half4(&p, table, vl, 0, panels, 32), second = half4(&p, table, vl, 1, panels, 32);
            sum = __riscv_vmul_vv_i32m4(__riscv_vadd_vv_i32m4(first, second, vl / 4), scales_of(&p, at, panels), vl / 4);
        }
        const vfloat32m4_t part = __riscv_vfmul_vf_f32m4(__riscv_vfcvt_f_x_v_f32m4(sum, vl / 4), scale[b], vl / 4);
        total = __riscv_vfadd_vv_f32m4(total, part, vl / 4);
        for (int i = 0; i < panels; i++) p.codes[i] += bits == 4 ? 256 : 512;
        p.q += NB_BLOCK;
    }
    for (int i = 0; i < panels; i++)
        nb_vstore_rows(y + (panel + (size_t)i) * NB_PANEL, sums_of(total, i, panels), p.scales[i], w->row_mul);
}

NB_INLINE void gemv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    const size_t bytes = __riscv_vsetvlmax_e8m1();
    for (size_t t = tile0; t < tile1; t++) {
        size_t p = panel0;
        if (bytes == 32)
            for (; p + 2 <= panel1; p += 2) run(w, a, y + t * ldy, t, p, 2, bits, group);
        if (bytes >= 64)
            for (; p + 4 <= panel1; p += 4) run(w, a, y + t * ldy, t, p, 4, bits, group);
        for (; p < panel1; p++) run(w, a, y + t * ldy, t, p, 1, bits, group);
    }
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g16s8p16x4__rvv;
void nb_gemv_f32_q8b32_q4g16s8p16x4__rvv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                         uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemv_f32_q8b32_q4g32s8p16x4__rvv;
void nb_gemv_f32_q8b32_q4g32s8p16x4__rvv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                         uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemv_f32_q8b32_q8g32s8p16x4__rvv;
void nb_gemv_f32_q8b32_q8g32s8p16x4__rvv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                         uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemv(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
