/* SPDX-License-Identifier: Apache-2.0
 * Matrix times tiles of 16 tokens, RVV, all formats; y[t][r] = row_factor * sum over blocks of (float)I * scale.
 * Lanes are rows: a strip of VLEN / 64 panels (32 rows at VLEN 128, 256 at 1024) is one e8 vector of two registers, so the
 * same instructions do more the wider the machine is. A run of the strip's blocks is unpacked from layout p16x4 to
 * [k][row] in a buffer of 16 KiB (two narrowing shifts split the dwords of a quad of k into byte planes, vrgather looks
 * values up at one register, where it is cheap), and all tokens pass over it in pairs; y keeps the float sums meanwhile.
 * 4 bits: four products of -64..63 by -127..127 fit int16, so vwmacc.vx runs at e8, twice as many lanes a register as at e16;
 * every fourth k the int16 sums meet the group scale in a vwmacc.vv to int32. 8 bits: only two products would fit, so the
 * weights are unpacked times their group scale (32,385 at most) and vwmacc.vx goes from e16 to int32 directly.
 * On paper, a block of 32 k, all lanes, two tokens:
 *   4 bits: 32 vle8, 64 vwmacc.vx, 8 vle16, 16 vwmacc.vv, 10 for the float sums, 17 vsetvli; 64 lb, 32 addresses, 8 for the
 *     loop: 239 instructions for 64 * VLEN / 4 products: 0.117 at VLEN 128, 0.058 at 256, 0.029 at 512. clang 22: 270.
 *   8 bits: 32 vle16, 64 vwmacc.vx, 10, 2 vsetvli, 64 lb, 32 addresses, 8: 212, 0.104 at VLEN 128. clang 22: 223.
 * In registers written, which is what the vector unit's time goes by, 4 bits cost 4 * 4 + 8 for 4 k of a token and 8 bits 32:
 * that is why 4 bits do not take the shorter way of 8 bits. tests/integration/test_instruction_count_riscv64.py counts.
 * Needs: a->tile == NB_TILE, values -64..63 or -127..127. */
#include "ops/riscv64/rvv.h"

enum { STRIP = 16, BUFFER = 16384, PAIR = 2 }; /* panels at most, bytes of unpacked weights, tokens */

/* A strip of panels whose rows are the lanes of one vector, and a run of its blocks, unpacked. */
struct strip {
    const uint8_t *panel; /* the first */
    size_t panel_stride, rows;
    union {
        int8_t narrow[BUFFER];    /* 4 bits: value of [block][k][row] */
        int16_t wide[BUFFER / 2]; /* 8 bits: value * group scale of [block][k][row] */
    } u;
    int16_t scale[2 * BUFFER / NB_BLOCK]; /* 4 bits: group scale of [block][half of k][row] */
};

/* `size` bytes of each panel, side by side */
NB_INLINE void join(uint8_t *to, const struct strip *s, size_t offset, size_t size) {
    for (size_t i = 0; i < s->rows / NB_PANEL; i++)
        __riscv_vse8_v_u8m4(to + i * size, __riscv_vle8_v_u8m4(s->panel + i * s->panel_stride + offset, size), size);
}

NB_INLINE vint8m2_t look_up(vint8m1_t table, vuint8m2_t index) {
    const size_t vl = __riscv_vsetvlmax_e8m1();
    return __riscv_vcreate_v_i8m1_i8m2(__riscv_vrgather_vv_i8m1(table, __riscv_vget_v_u8m2_u8m1(index, 0), vl),
                                       __riscv_vrgather_vv_i8m1(table, __riscv_vget_v_u8m2_u8m1(index, 1), vl));
}

/* A byte plane of a quad of k: bytes k of all rows, from the dwords of the rows; two narrowing shifts */
NB_INLINE vuint8m2_t plane(vuint32m8_t quad, size_t k, size_t vl) {
    return __riscv_vnsrl_wx_u8m2(__riscv_vnsrl_wx_u16m4(quad, 16 * (k / 2), vl), 8 * (k % 2), vl);
}

NB_INLINE void unpack4(int8_t *to, int16_t *scale, const struct strip *s, const struct nb_mat *w, size_t b, int group) {
    const size_t vl = s->rows;
    const vint8m1_t table = __riscv_vle8_v_i8m1(w->table, 16);
    uint8_t joined[64 * STRIP];
    for (size_t half = 0; half < 2; half++) {
        join(joined, s, 2 * NB_PANEL + (group == 16 ? 2 * b + half : b >> w->group_shift) * NB_PANEL, NB_PANEL);
        const vuint16m4_t wide = __riscv_vzext_vf2_u16m4(__riscv_vle8_v_u8m2(joined, vl), vl);
        __riscv_vse16_v_i16m4(scale + half * vl, __riscv_vreinterpret_v_u16m4_i16m4(wide), vl);
    }
    for (size_t j = 0; j < 4; j++) {
        join(joined, s, w->code_offset + b * 256 + 64 * j, 64);
        const vuint32m8_t quad = __riscv_vreinterpret_v_u8m8_u32m8(__riscv_vle8_v_u8m8(joined, 4 * vl));
        NB_UNROLL
        for (size_t k = 0; k < 4; k++) {
            const vuint8m2_t bytes = plane(quad, k, vl);
            __riscv_vse8_v_i8m2(to + (4 * j + k) * vl, look_up(table, __riscv_vand_vx_u8m2(bytes, 15, vl)), vl);
            __riscv_vse8_v_i8m2(to + (16 + 4 * j + k) * vl, look_up(table, __riscv_vsrl_vx_u8m2(bytes, 4, vl)), vl);
        }
    }
}

NB_INLINE void unpack8(int16_t *to, const struct strip *s, const struct nb_mat *w, size_t b) {
    const size_t vl = s->rows;
    uint8_t joined[64 * STRIP];
    join(joined, s, 2 * NB_PANEL + (b >> w->group_shift) * NB_PANEL, NB_PANEL);
    const vuint8m2_t scale = __riscv_vle8_v_u8m2(joined, vl);
    for (size_t j = 0; j < 8; j++) {
        join(joined, s, w->code_offset + b * 512 + 64 * j, 64);
        const vuint32m8_t quad = __riscv_vreinterpret_v_u8m8_u32m8(__riscv_vle8_v_u8m8(joined, 4 * vl));
        NB_UNROLL
        for (size_t k = 0; k < 4; k++) {
            const vint8m2_t value = __riscv_vreinterpret_v_u8m2_i8m2(plane(quad, k, vl));
            __riscv_vse16_v_i16m4(to + (4 * j + k) * vl, __riscv_vwmulsu_vv_i16m4(value, scale, vl), vl);
        }
    }
}

/* y += (float)sum * scale */
NB_INLINE void add_block(float *y, vint32m8_t sum, float scale, size_t vl) {
    const vfloat32m8_t part = __riscv_vfmul_vf_f32m8(__riscv_vfcvt_f_x_v_f32m8(sum, vl), scale, vl);
    __riscv_vse32_v_f32m8(y, __riscv_vfadd_vv_f32m8(__riscv_vle32_v_f32m8(y, vl), part, vl), vl);
}

/* One block of all rows times two tokens: q and scale of the second follow those of the first. */
NB_INLINE void inner4(float *y0, float *y1, const int8_t *v, const int16_t *scales, const int8_t *q, const float *scale,
                      size_t vl) {
    vint32m8_t sum0 = __riscv_vundefined_i32m8(), sum1 = __riscv_vundefined_i32m8();
    NB_UNROLL
    for (int k = 0; k < NB_BLOCK; k += 4) {
        vint16m4_t four0 = __riscv_vundefined_i16m4(), four1 = __riscv_vundefined_i16m4();
        NB_UNROLL
        for (int i = 0; i < 4; i++, v += vl) {
            const vint8m2_t x = __riscv_vle8_v_i8m2(v, vl);
            const int8_t q0 = q[k + i], q1 = q[NB_BLOCK + k + i];
            four0 = i ? __riscv_vwmacc_vx_i16m4(four0, q0, x, vl) : __riscv_vwmul_vx_i16m4(x, q0, vl);
            four1 = i ? __riscv_vwmacc_vx_i16m4(four1, q1, x, vl) : __riscv_vwmul_vx_i16m4(x, q1, vl);
        }
        NB_AFTER_BOTH(scales, four0, four1);
        const vint16m4_t g = __riscv_vle16_v_i16m4(scales + (k < 16 ? 0 : vl), vl);
        sum0 = k ? __riscv_vwmacc_vv_i32m8(sum0, four0, g, vl) : __riscv_vwmul_vv_i32m8(four0, g, vl);
        sum1 = k ? __riscv_vwmacc_vv_i32m8(sum1, four1, g, vl) : __riscv_vwmul_vv_i32m8(four1, g, vl);
        NB_AFTER_BOTH(v, sum0, sum1);
        NB_AFTER_BOTH(q, sum0, sum1);
    }
    NB_AFTER_BOTH(y0, sum0, sum1);
    add_block(y0, sum0, scale[0], vl);
    add_block(y1, sum1, scale[1], vl);
}

NB_INLINE void inner8(float *y0, float *y1, const int16_t *v, const int8_t *q, const float *scale, size_t vl) {
    vint32m8_t sum0 = __riscv_vundefined_i32m8(), sum1 = __riscv_vundefined_i32m8();
    NB_UNROLL
    for (int k = 0; k < NB_BLOCK; k++, v += vl) {
        const vint16m4_t x = __riscv_vle16_v_i16m4(v, vl);
        sum0 = k ? __riscv_vwmacc_vx_i32m8(sum0, q[k], x, vl) : __riscv_vwmul_vx_i32m8(x, q[k], vl);
        sum1 = k ? __riscv_vwmacc_vx_i32m8(sum1, q[NB_BLOCK + k], x, vl) : __riscv_vwmul_vx_i32m8(x, q[NB_BLOCK + k], vl);
        if (k % 4 == 3) NB_AFTER(v, sum1);
    }
    add_block(y0, sum0, scale[0], vl);
    add_block(y1, sum1, scale[1], vl);
}

NB_INLINE void gemm(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                    uint32_t tile0, uint32_t tile1, int bits, int group) {
    struct strip s;
    float spare[NB_PANEL * STRIP] = {0}; /* where the sums of a token past the last go */
    const size_t lanes = __riscv_vsetvlmax_e8m2() / NB_PANEL, most = lanes < STRIP ? lanes : STRIP;
    const size_t first = (size_t)tile0 * NB_TILE, end = (size_t)tile1 * NB_TILE, last = end < a->tokens ? end : a->tokens;
    s.panel_stride = w->panel_stride;
    for (size_t p0 = panel0, panels; p0 < panel1; p0 += panels) {
        panels = panel1 - p0 < most ? panel1 - p0 : most;
        const size_t vl = s.rows = panels * NB_PANEL, fits = BUFFER / (NB_BLOCK * vl * (bits == 8 ? 2 : 1));
        s.panel = w->data + p0 * w->panel_stride;
        for (size_t t = first; t < last; t++) memset(y + t * ldy + p0 * NB_PANEL, 0, vl * sizeof *y);
        for (size_t b0 = 0, run; b0 < w->blocks; b0 += run) {
            run = w->blocks - b0 < fits ? w->blocks - b0 : fits;
            for (size_t b = 0; b < run; b++) {
                if (bits == 4) unpack4(s.u.narrow + b * NB_BLOCK * vl, s.scale + b * 2 * vl, &s, w, b0 + b, group);
                else unpack8(s.u.wide + b * NB_BLOCK * vl, &s, w, b0 + b);
            }
            for (size_t t = first; t < last; t += PAIR) {
                float *y0 = y + t * ldy + p0 * NB_PANEL, *y1 = t + 1 < last ? y0 + ldy : spare;
                size_t e = (t / NB_TILE * w->blocks + b0) * NB_TILE + t % NB_TILE;
                for (size_t b = 0; b < run; b++, e += NB_TILE) {
                    if (bits == 4)
                        inner4(y0, y1, s.u.narrow + b * NB_BLOCK * vl, s.scale + b * 2 * vl, a->q + e * NB_BLOCK, a->scale + e,
                               vl);
                    else inner8(y0, y1, s.u.wide + b * NB_BLOCK * vl, a->q + e * NB_BLOCK, a->scale + e, vl);
                }
            }
        }
        for (size_t t = first; t < last; t++)
            for (size_t p = p0; p < p0 + panels; p++) {
                float *at = y + t * ldy + p * NB_PANEL;
                nb_vstore_rows(at, __riscv_vle32_v_f32m4(at, NB_PANEL), w->data + p * w->panel_stride, w->row_mul);
            }
    }
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g16s8p16x4__rvv;
void nb_gemm_f32_q8b32_q4g16s8p16x4__rvv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                         uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 16);
}

nb_gemm_fn nb_gemm_f32_q8b32_q4g32s8p16x4__rvv;
void nb_gemm_f32_q8b32_q4g32s8p16x4__rvv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                         uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 4, 32);
}

nb_gemm_fn nb_gemm_f32_q8b32_q8g32s8p16x4__rvv;
void nb_gemm_f32_q8b32_q8g32s8p16x4__rvv(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0,
                                         uint32_t panel1, uint32_t tile0, uint32_t tile1) {
    gemm(w, a, y, ldy, panel0, panel1, tile0, tile1, 8, 32);
}
