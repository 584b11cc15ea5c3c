/* SPDX-License-Identifier: Apache-2.0
 * The kernel table (hardware abstraction layer): one function pointer per operator, filled once from kernels.def.
 * Everything left of "__" in a kernel's name is a contract written down here and, as a program, in
 * nanobuild/reference.py: all levels return the same bits. Multiply and add are rounded separately everywhere. */
#ifndef NB_HAL_H
#define NB_HAL_H

#include <stddef.h>
#include <stdint.h>

#include "hal/isa.h"

enum { NB_BLOCK = 32, NB_PANEL = 16, NB_TILE = 16, NB_RANGE = 256 };

/* Weight formats; the numbers are on disk (kernels/FORMAT.md). */
enum nb_format {
    NB_F32 = 0,
#define NB_FORMAT(number, NAME, name, bits, group) NB_##NAME = number,
#include "hal/formats.def"
#undef NB_FORMAT
    NB_FORMATS
};

struct nb_format_row {
    const char *name;
    uint32_t bits;  /* of a code: a block of 16 rows has 64 * bits bytes of codes */
    uint32_t group; /* 16, or 32 for 32 and more */
};
extern const struct nb_format_row nb_format_rows[NB_FORMATS]; /* by enum nb_format; all 0 for NB_F32 */

/* One packed matrix in layout p16x4, used in place in the mapping. Panel p holds rows 16p..16p+15:
 *   f16 row_scale[16] | u8 group_scale[groups][16] | zeros to a multiple of 64 | codes[blocks]
 * 4-bit block: u8 [j=0..3][r=0..15][i=0..3], low nibble = code of k=4j+i, high nibble = code of k=16+4j+i.
 * 8-bit block: s8 [j=0..7][r=0..15][i=0..3], the value of k=4j+i.
 * weight[r][k] = row_scale[r] * row_mul * group_scale[k/group][r] * value; value = table[code] or the s8 itself.
 * For groups of 32 and more the scale of block b is group_scale[b >> group_shift]; for groups of 16 block b has
 * the two scales 2b (k 0..15) and 2b+1 (k 16..31), and group_shift is 0. Rows and columns past the end are zeros. */
struct nb_mat {
    const uint8_t *data;
    size_t panel_stride;  /* bytes, a multiple of 64 */
    uint32_t rows, cols;  /* logical */
    uint32_t panels;      /* ceil(rows / 16) */
    uint32_t blocks;      /* ceil(cols / 32) */
    uint32_t groups;      /* scales per row */
    uint32_t code_offset; /* bytes from panel start to codes, a multiple of 64 */
    uint32_t group_shift;
    uint32_t format;  /* enum nb_format */
    float row_mul;    /* 2^row_exp, exact */
    int8_t table[16]; /* 4-bit formats: value of each code, -64..63 */
};

/* Quantized activations of n tokens in tiles of `tile` tokens (1 or NB_TILE), unused tokens of the last tile are zeros.
 * Index of (token t, block b): e = (t / tile * blocks + b) * tile + t % tile; then q[32 e .. 32 e + 31], scale[e], bias[e]. */
struct nb_act {
    int8_t *q;       /* round_half_even(x * (127 / max|x|)), -127..127 */
    float *scale;    /* max|x| / 127, 0 for a block whose max|x| < 2^-100 */
    int32_t *bias;   /* -64 * sum of the block's q */
    uint32_t blocks; /* ceil(cols / 32) */
    uint32_t tile;
    uint32_t tokens;
};

enum nb_kv_type { NB_KV_F16 = 0, NB_KV_I8 = 1 };

/* Keys and values of one layer and one kv head; position p is at k + p * head_dim elements. */
struct nb_kv {
    void *k, *v;              /* f16 or s8 (ctx, head_dim) */
    float *k_scale, *v_scale; /* s8 only: (ctx) */
    uint32_t type, head_dim;
};

/* y[t * ldy + r] = row_scale * row_mul * sum over blocks b, in increasing b, of (float)I(r, t, b) * scale(t, b), where
 * I = sum of value * group_scale * q, exact in int32. Covers panels [panel0, panel1) and tiles [tile0, tile1) of a;
 * writes all 16 rows of a panel, so ldy >= 16 * panels, and all tokens < a->tokens of a tile.
 * The row factor is fl(f16 row_scale * row_mul), exact. gemv: a->tile == 1; gemm: a->tile == NB_TILE. */
typedef void nb_gemm_fn(const struct nb_mat *w, const struct nb_act *a, float *y, size_t ldy, uint32_t panel0, uint32_t panel1,
                        uint32_t tile0, uint32_t tile1);

/* Quantizes blocks [block0, block1) of one token; x points at the token's first element, n is its length;
 * elements past n count as 0. scale = fl(m / 127), inverse = fl(127 / m), q = rne(fl(x * inverse)). */
typedef void nb_quantize_fn(struct nb_act *a, uint32_t token, uint32_t block0, uint32_t block1, const float *x, uint32_t n);

/* y = fl(fl(x * inv) * w), inv = fl(1 / sqrt(fl(fl(lanes(x*x) / n) + eps))); lanes() = 16 virtual lanes:
 * element i into lane i % 16 in increasing i, then fold 8, 4, 2, 1 (lane[i] += lane[i + 8] ...). y may be x. */
typedef void nb_rmsnorm_fn(float *y, const float *x, const float *w, uint32_t n, float eps);

/* Rotates pairs (i, i + rot/2) of the first rot channels of each head, in place; cos, sin: (rot/2).
 * x1' = fl(fl(x1*c) - fl(x2*s)), x2' = fl(fl(x2*c) + fl(x1*s)). */
typedef void nb_rope_fn(float *x, uint32_t heads, uint32_t head_dim, uint32_t rot, const float *cos, const float *sin);

/* y = fl(act(gate) * up). silu(x) = x / (1 + exp(-x)); gelu(x) = x / (1 + exp(-2u)),
 * u = fl(0.7978845608f * fl(x + fl(0.044715f * fl(fl(x*x)*x)))). exp is nb_exp of ops/scalar/math.h. y may be gate. */
typedef void nb_gated_fn(float *y, const float *gate, const float *up, uint32_t n);

/* y += x */
typedef void nb_add_fn(float *y, const float *x, uint32_t n);

/* y[k] = fl(fl(row_factor * (float)(group_scale * value)) * scale), k < cols */
typedef void nb_embed_fn(float *y, const struct nb_mat *w, uint32_t row, float scale);

/* Stores one position: f16 round to nearest even; s8: m = max|x| over the head, scale = fl(m / 127), q as above. */
typedef void nb_kv_store_fn(const struct nb_kv *kv, uint32_t pos, const float *k, const float *v);

/* A run of tokens, each with `heads` query heads that share one kv head, and what attention to a range gives for them.
 * Arrays of (tokens, heads) are indexed t * heads + h. */
struct nb_attention {
    const float *q; /* token t's heads (heads, head_dim) at q + t * ldq */
    size_t ldq;
    uint32_t heads, tokens;
    const uint32_t *from, *to; /* (tokens): t sees [from, to), at least one position, all in one multiple of NB_RANGE; no falls */
    float scale, cap;          /* of the scores; cap 0: none */
    float *scores;             /* scratch: (tokens, heads, NB_RANGE) */
    float *max, *sum;          /* (tokens, heads) */
    float *out;                /* token t's heads (heads, head_dim) at out + t * ldo */
    size_t ldo;
};

/* One range of positions. For each token and head over its positions p = from .. to - 1:
 *   f16:  s = fl(lanes(q[i] * k[i]) * scale)
 *   s8:   q quantized over the head to int8 with scale sq; s = fl((float)dot * fl(fl(sq * k_scale[p]) * scale))
 *   with a cap: s = fl(cap * tanh(fl(s / cap))), tanh(x) = fl(fl(e - 1) / fl(e + 1)), e = exp(fl(x + x))
 *   max = maximum of s, plus 0 (so that -0 becomes +0 whatever was met first); e = exp(fl(s - max));
 *   sum = lanes over positions (position p into lane p % 16)
 *   out[c] = sum over p, increasing, of fl(e * v[p][c])   (s8: fl(fl(e * v_scale[p]) * (float)v[p][c])) */
typedef void nb_attend_fn(const struct nb_kv *kv, const struct nb_attention *a);

/* Joins n ranges of one head in increasing order: M = max of max[r]; w = exp(fl(max[r] - M));
 * L += fl(sum[r] * w); y[c] += fl(out[r * stride + c] * w); finally y[c] = fl(y[c] * fl(1 / L)). */
typedef void nb_attend_join_fn(float *y, uint32_t head_dim, uint32_t n, const float *max, const float *sum, const float *out,
                               size_t stride);

struct nb_hal {
    uint32_t isa; /* bits in use */
#define NB_SLOT(type, name)                                                                                                      \
    type *name;                                                                                                                  \
    const char *name##_name;
#include "slots.def"
#undef NB_SLOT
    nb_gemm_fn *gemv[NB_FORMATS], *gemm[NB_FORMATS]; /* views of the slots by format; NULL for NB_F32 */
};

/* Scalar first, then every row of kernels.def that isa or NB_FLOOR (hal/isa.h) allows */
void nb_hal_init(struct nb_hal *hal, uint32_t isa);

#endif
