/* SPDX-License-Identifier: Apache-2.0
 * model.nano as views into one read-only mapping (kernels/FORMAT.md). Nothing in the file is trusted: every field is
 * checked before it is used. Knows no kernels, prints nothing. */
#ifndef NB_MODEL_H
#define NB_MODEL_H

#include "hal/hal.h"
#include "runtime/error.h"

enum nb_map_mode {
    NB_MAP_AUTO,     /* mapped, the kernel is told to read ahead */
    NB_MAP_POPULATE, /* mapped, every page present before open returns */
    NB_MAP_LAZY,     /* mapped, pages come when they are touched */
    NB_MAP_READ,     /* read into anonymous memory: for file systems that cannot map, and for huge pages */
};

enum nb_role {
    NB_ROLE_EMBED,
    NB_ROLE_HEAD,
    NB_ROLE_FINAL_NORM,
    NB_ROLE_ATTN_NORM,
    NB_ROLE_Q,
    NB_ROLE_K,
    NB_ROLE_V,
    NB_ROLE_O,
    NB_ROLE_GATE,
    NB_ROLE_UP,
    NB_ROLE_DOWN,
    NB_ROLE_FFN_NORM,
    NB_ROLE_Q_NORM,
    NB_ROLE_K_NORM,
    NB_ROLE_ATTN_POST_NORM,
    NB_ROLE_FFN_POST_NORM,
    NB_ROLES,
};

enum { NB_SPEC_QK_NORM = 1, NB_SPEC_POST_NORMS = 2, NB_SPEC_TIED = 4 };
enum { NB_ACT_SILU = 0, NB_ACT_GELU_TANH = 1 };

/* The feature record. */
struct nb_spec {
    uint32_t hidden, ffn, heads, kv_heads, head_dim, vocab, max_positions, layers, ropes, activation, flags;
    float norm_eps, attn_scale, embed_scale;
};

struct nb_layer {
    uint32_t rope, window; /* window 0: all positions */
    const float *vector[NB_ROLES];
    struct nb_mat q, k, v, o, gate, up, down;
};

struct nb_rope_set {
    uint32_t n; /* rotated channels / 2 */
    const float *inv_freq;
};

struct nb_section {
    const uint8_t *data; /* NULL: the file has no such section */
    size_t size;
};

struct nb_model {
    const uint8_t *base; /* the whole file */
    size_t size;
    enum nb_map_mode mode;
    struct nb_spec spec;
    struct nb_section spec_section, tensors, weights, checksums, tokenizer, chat, meta;
    uint32_t tensor_count;
    struct nb_layer *layers;   /* (spec.layers), one heap block together with ropes */
    struct nb_rope_set *ropes; /* (spec.ropes) */
    struct nb_mat embed, head; /* head is embed again if tied */
    const float *final_norm;
};

/* Opens, maps and checks everything but the weights' own bytes. NB_INTEGRITY with E_MODEL_TRUNCATED or
 * E_MODEL_CHECKSUM for damage, NB_INPUT with E_MODEL_* for a file that breaks a rule or cannot be opened. */
enum nb_status nb_model_open(struct nb_model *m, const char *path, enum nb_map_mode mode, struct nb_error *err);
void nb_model_close(struct nb_model *m);

/* Reads every weight: checksum of each tensor and of each 64 KiB. The error names the tensor. *stop (may be NULL)
 * ends it early with NB_OK when it becomes nonzero. */
enum nb_status nb_model_verify(const struct nb_model *m, const volatile int *stop, struct nb_error *err);

/* Shape of a packed matrix: fills all of *mat but data, row_mul and table, and *size with its bytes.
 * Returns 0 if format and group do not go together or a size does not fit. The one size function of the C side. */
int nb_matrix_size(struct nb_mat *mat, uint32_t format, uint32_t rows, uint32_t cols, uint32_t group, size_t *size);

/* One row of the tensor table, checked before; i < tensor_count. */
struct nb_tensor {
    uint32_t role, layer, format, rows, cols, group, crc;
    int32_t row_exp;
    uint64_t offset, size;
    const uint8_t *table;
};
struct nb_tensor nb_model_tensor(const struct nb_model *m, uint32_t i);
/* "embed", "layers.3.q"; out has room for 40 bytes. */
void nb_tensor_name(uint32_t role, uint32_t layer, char *out);

#endif
