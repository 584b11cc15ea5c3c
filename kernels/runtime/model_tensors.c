/* SPDX-License-Identifier: Apache-2.0
 * The tensor table: exactly the tensors that the feature record asks for, each of the size that its fields give.
 * Also the checksums of the weights, per tensor and per 64 KiB. */
#include <stdio.h>

#include "runtime/checked.h"
#include "runtime/crc32c.h"
#include "runtime/model_internal.h"

enum { ENTRY = 64, FIRST = 16, CHUNK = 65536 };

static const char *const role_name[NB_ROLES] = {"embed",  "head",   "final_norm",     "attn_norm",    "q",    "k",
                                                "v",      "o",      "gate",           "up",           "down", "ffn_norm",
                                                "q_norm", "k_norm", "attn_post_norm", "ffn_post_norm"};

void nb_tensor_name(uint32_t role, uint32_t layer, char *out) {
    const char *name = role < NB_ROLES ? role_name[role] : "?";
    if (role <= NB_ROLE_FINAL_NORM) snprintf(out, 40, "%s", name);
    else snprintf(out, 40, "layers.%u.%s", layer, name);
}

int nb_matrix_size(struct nb_mat *mat, uint32_t format, uint32_t rows, uint32_t cols, uint32_t group, size_t *size) {
    const uint32_t kind = format < NB_FORMATS ? nb_format_rows[format].group : 0;
    const int fits = kind == 16 ? group == 16 : kind == 32 && (group == 32 || group == 64 || group == 128);
    if (!fits || rows == 0 || cols == 0 || rows > UINT32_MAX - 15 || cols > UINT32_MAX - 127) return 0;
    mat->format = format;
    mat->rows = rows;
    mat->cols = cols;
    mat->panels = (rows + NB_PANEL - 1) / NB_PANEL;
    mat->blocks = (cols + NB_BLOCK - 1) / NB_BLOCK;
    mat->groups = (cols + group - 1) / group;
    mat->group_shift = group == 128 ? 2 : group == 64 ? 1 : 0;
    size_t header, codes;
    if (!nb_mul_size(mat->groups, NB_PANEL, &header) || !nb_add_size(header, 2 * NB_PANEL, &header) ||
        !nb_align_size(header, 64, &header) || header > UINT32_MAX)
        return 0;
    mat->code_offset = (uint32_t)header;
    return nb_mul_size(mat->blocks, 64 * nb_format_rows[format].bits, &codes) && nb_add_size(header, codes, &mat->panel_stride) &&
           nb_mul_size(mat->panel_stride, mat->panels, size);
}

struct nb_tensor nb_model_tensor(const struct nb_model *m, uint32_t i) {
    const uint8_t *e = m->tensors.data + FIRST + (size_t)i * ENTRY;
    return (struct nb_tensor){.role = nb_read_u32(e),
                              .layer = nb_read_u32(e + 4),
                              .format = nb_read_u32(e + 8),
                              .rows = nb_read_u32(e + 12),
                              .cols = nb_read_u32(e + 16),
                              .row_exp = (int32_t)nb_read_u32(e + 20),
                              .group = nb_read_u32(e + 24),
                              .crc = nb_read_u32(e + 28),
                              .offset = nb_read_u64(e + 32),
                              .size = nb_read_u64(e + 40),
                              .table = e + 48};
}

static enum nb_status bad_tensor(struct nb_error *err, const struct nb_tensor *t, const char *what) {
    char name[40];
    nb_tensor_name(t->role, t->layer, name);
    return nb_fail(err, NB_INPUT, "E_MODEL_TENSOR", "tensor %s: %s", name, what);
}

/* What the feature record says about a role: 0 if it has no such tensor, else shape (rows 1: a vector). */
static int expected_shape(const struct nb_spec *s, uint32_t role, uint32_t *rows, uint32_t *cols) {
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    *rows = 1;
    *cols = s->hidden;
    switch (role) {
    case NB_ROLE_EMBED: *rows = s->vocab; return 1;
    case NB_ROLE_HEAD: *rows = s->vocab; return !(s->flags & NB_SPEC_TIED);
    case NB_ROLE_Q: *rows = q; return 1;
    case NB_ROLE_K:
    case NB_ROLE_V: *rows = kv; return 1;
    case NB_ROLE_O:
        *rows = s->hidden;
        *cols = q;
        return 1;
    case NB_ROLE_GATE:
    case NB_ROLE_UP: *rows = s->ffn; return 1;
    case NB_ROLE_DOWN:
        *rows = s->hidden;
        *cols = s->ffn;
        return 1;
    case NB_ROLE_FINAL_NORM:
    case NB_ROLE_ATTN_NORM:
    case NB_ROLE_FFN_NORM: return 1;
    case NB_ROLE_Q_NORM:
    case NB_ROLE_K_NORM: *cols = s->head_dim; return (s->flags & NB_SPEC_QK_NORM) != 0;
    case NB_ROLE_ATTN_POST_NORM:
    case NB_ROLE_FFN_POST_NORM: return (s->flags & NB_SPEC_POST_NORMS) != 0;
    default: return 0;
    }
}

static int is_matrix(uint32_t role) {
    return role == NB_ROLE_EMBED || role == NB_ROLE_HEAD || (role >= NB_ROLE_Q && role <= NB_ROLE_DOWN);
}

static enum nb_status take_matrix(struct nb_model *m, const struct nb_tensor *t, struct nb_mat *mat, struct nb_error *err) {
    size_t size;
    if (!nb_matrix_size(mat, t->format, t->rows, t->cols, t->group, &size)) return bad_tensor(err, t, "unknown format or group");
    if (size != t->size) return bad_tensor(err, t, "size does not follow from its shape");
    if (t->row_exp < -126 || t->row_exp > 127) return bad_tensor(err, t, "row_exp is out of range");
    for (int i = 0; i < 16; i++) {
        int value = (int8_t)t->table[i];
        if (nb_format_rows[t->format].bits > 4 ? value != 0 : value < -64 || value > 63)
            return bad_tensor(err, t, "a table value is out of range");
        mat->table[i] = (int8_t)value;
    }
    uint32_t bits = (uint32_t)(t->row_exp + 127) << 23;
    memcpy(&mat->row_mul, &bits, sizeof bits);
    mat->data = m->weights.data + t->offset;
    return NB_OK;
}

static enum nb_status take_vector(struct nb_model *m, const struct nb_tensor *t, const float **vector, struct nb_error *err) {
    if (t->format != NB_F32 || t->group || t->row_exp) return bad_tensor(err, t, "a vector must be f32");
    if (t->size != (uint64_t)t->cols * 4) return bad_tensor(err, t, "size does not follow from its shape");
    for (int i = 0; i < 16; i++)
        if (t->table[i]) return bad_tensor(err, t, "a vector has no table");
    *vector = (const float *)(const void *)(m->weights.data + t->offset);
    return NB_OK;
}

static struct nb_mat *matrix_place(struct nb_model *m, const struct nb_tensor *t) {
    struct nb_layer *l = t->role > NB_ROLE_FINAL_NORM ? &m->layers[t->layer] : NULL;
    switch (t->role) {
    case NB_ROLE_EMBED: return &m->embed;
    case NB_ROLE_HEAD: return &m->head;
    case NB_ROLE_Q: return &l->q;
    case NB_ROLE_K: return &l->k;
    case NB_ROLE_V: return &l->v;
    case NB_ROLE_O: return &l->o;
    case NB_ROLE_GATE: return &l->gate;
    case NB_ROLE_UP: return &l->up;
    default: return &l->down;
    }
}

static enum nb_status take_tensor(struct nb_model *m, const struct nb_tensor *t, uint64_t end, struct nb_error *err) {
    uint32_t rows, cols;
    if (!expected_shape(&m->spec, t->role, &rows, &cols)) return bad_tensor(err, t, "the feature record has no such tensor");
    int global = t->role <= NB_ROLE_FINAL_NORM;
    if (global ? t->layer != UINT32_MAX : t->layer >= m->spec.layers) return bad_tensor(err, t, "no such layer");
    if (t->rows != rows || t->cols != cols) return bad_tensor(err, t, "shape does not follow from the feature record");
    if (t->offset % 64 || t->offset < end || !nb_inside(t->offset, t->size, m->weights.size))
        return bad_tensor(err, t, "bad place");
    if (is_matrix(t->role)) {
        struct nb_mat *mat = matrix_place(m, t);
        if (mat->data) return bad_tensor(err, t, "occurs twice");
        return take_matrix(m, t, mat, err);
    }
    const float **vector = global ? &m->final_norm : &m->layers[t->layer].vector[t->role];
    if (*vector) return bad_tensor(err, t, "occurs twice");
    return take_vector(m, t, vector, err);
}

enum nb_status nb_model_tensors(struct nb_model *m, struct nb_error *err) {
    const struct nb_section *sec = &m->tensors;
    if (sec->size < FIRST) return nb_fail(err, NB_INPUT, "E_MODEL_TENSOR", "tensor table is too short");
    uint32_t count = nb_read_u32(sec->data), expected = 0, rows, cols;
    if (nb_read_u32(sec->data + 4) != ENTRY || nb_read_u64(sec->data + 8) || (sec->size - FIRST) % ENTRY ||
        (sec->size - FIRST) / ENTRY != count)
        return nb_fail(err, NB_INPUT, "E_MODEL_TENSOR", "tensor table: size does not match %u entries", count);
    for (uint32_t role = 0; role < NB_ROLES; role++)
        if (expected_shape(&m->spec, role, &rows, &cols)) expected += role <= NB_ROLE_FINAL_NORM ? 1 : m->spec.layers;
    if (count != expected)
        return nb_fail(err, NB_INPUT, "E_MODEL_TENSOR", "%u tensors, the feature record asks for %u", count, expected);
    m->tensor_count = count;
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++) { /* as many as expected, none twice, none unknown: all are there */
        struct nb_tensor t = nb_model_tensor(m, i);
        enum nb_status s = take_tensor(m, &t, end, err);
        if (s) return s;
        end = t.offset + t.size;
    }
    if (m->spec.flags & NB_SPEC_TIED) m->head = m->embed;
    return NB_OK;
}

enum nb_status nb_model_checksums(const struct nb_model *m, struct nb_error *err) {
    const struct nb_section *sec = &m->checksums;
    uint64_t count = m->weights.size / CHUNK + (m->weights.size % CHUNK != 0);
    if (sec->size < 8 || nb_read_u32(sec->data) != CHUNK || nb_read_u32(sec->data + 4) != count || (sec->size - 8) / 4 != count ||
        sec->size % 4)
        return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "section CSUM does not cover the weights");
    return NB_OK;
}

/* Name of the tensor that owns byte `at` of the weights, or "padding". */
static void owner(const struct nb_model *m, uint64_t from, uint64_t to, char *out) {
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        struct nb_tensor t = nb_model_tensor(m, i);
        if (t.offset < to && t.offset + t.size > from) {
            nb_tensor_name(t.role, t.layer, out);
            return;
        }
    }
    snprintf(out, 40, "padding");
}

enum nb_status nb_model_verify(const struct nb_model *m, const volatile int *stop, struct nb_error *err) {
    char name[40];
    for (uint32_t i = 0; i < m->tensor_count && !(stop && *stop); i++) {
        struct nb_tensor t = nb_model_tensor(m, i);
        if (nb_crc32c(0, m->weights.data + t.offset, (size_t)t.size) == t.crc) continue;
        nb_tensor_name(t.role, t.layer, name);
        return nb_fail(err, NB_INTEGRITY, "E_MODEL_CHECKSUM", "tensor %s: checksum does not match", name);
    }
    uint32_t count = nb_read_u32(m->checksums.data + 4);
    for (uint32_t i = 0; i < count && !(stop && *stop); i++) {
        uint64_t at = (uint64_t)i * CHUNK, left = m->weights.size - at, n = left < CHUNK ? left : CHUNK;
        uint32_t crc = nb_crc32c(nb_crc32c(0, &i, sizeof i), m->weights.data + at, (size_t)n);
        if (crc == nb_read_u32(m->checksums.data + 8 + (size_t)i * 4)) continue;
        owner(m, at, at + n, name);
        return nb_fail(err, NB_INTEGRITY, "E_MODEL_CHECKSUM",
                       "64 KiB block %u of the weights (tensor %s): checksum does not match", i, name);
    }
    return NB_OK;
}
