/* SPDX-License-Identifier: Apache-2.0
 * Opening model.nano: size against the header before anything is mapped, then the section table, then the feature
 * record. What comes out is valid as a whole; the rest of the runtime checks nothing again. */
#include "runtime/model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checked.h"
#include "runtime/crc32c.h"
#include "runtime/model_internal.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model.nano is used in place: the machine must be little-endian"
#endif

enum { HEADER = 64, ENTRY = 32, SECTIONS = 16, ALIGN = 65536, KINDS = 7 };
enum {
    MAX_WIDTH = 1 << 20,
    MAX_HEAD_DIM = 1024,
    MAX_VOCAB = 4 << 20,
    MAX_POSITIONS = 1 << 24,
    MAX_LAYERS = 4096,
    MAX_ROPES = 64
};

static const char kinds[KINDS][5] = {"SPEC", "TENS", "WGTS", "CSUM", "TOKN", "CHAT", "META"};

static struct nb_section *section(struct nb_model *m, uint32_t kind) {
    struct nb_section *all[KINDS] = {&m->spec_section, &m->tensors, &m->weights, &m->checksums,
                                     &m->tokenizer,    &m->chat,    &m->meta};
    for (int i = 0; i < KINDS; i++)
        if (nb_read_u32((const uint8_t *)kinds[i]) == kind) return all[i];
    return NULL;
}

static enum nb_status read_fully(int fd, uint8_t *to, size_t n, struct nb_error *err) {
    for (size_t done = 0; done < n;) {
        size_t piece = n - done < (64u << 20) ? n - done : (64u << 20);
        ssize_t got = pread(fd, to + done, piece, (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return nb_fail(err, NB_INTEGRITY, "E_MODEL_IO", "cannot be read: %s", strerror(errno));
        if (got == 0) return nb_fail(err, NB_INTEGRITY, "E_MODEL_TRUNCATED", "ends at byte %zu of %zu", done, n);
        done += (size_t)got;
    }
    return NB_OK;
}

/* Magic, version, size and checksum of the header, read before the file is mapped. Fills head, which has room for
 * HEADER + SECTIONS * ENTRY bytes, and *count. */
static enum nb_status read_header(int fd, uint64_t file_size, uint8_t *head, uint32_t *count, struct nb_error *err) {
    static const uint8_t magic[8] = {0x89, 'n', 'a', 'n', 'o', '\r', '\n', 0x1a};
    size_t have = file_size < HEADER ? (size_t)file_size : HEADER;
    enum nb_status s = read_fully(fd, head, have, err);
    if (s) return s;
    if (memcmp(head, magic, have < 8 ? have : 8)) return nb_fail(err, NB_INPUT, "E_MODEL_MAGIC", "is not a model.nano file");
    if (have < HEADER) return nb_fail(err, NB_INTEGRITY, "E_MODEL_TRUNCATED", "has %zu bytes, less than its header", have);
    if (nb_read_u32(head + 8) != 1)
        return nb_fail(err, NB_INPUT, "E_MODEL_VERSION", "format version %u, this program reads version 1",
                       nb_read_u32(head + 8));
    uint64_t size = nb_read_u64(head + 16);
    if (size != file_size)
        return nb_fail(err, NB_INTEGRITY, "E_MODEL_TRUNCATED", "has %llu bytes, its header says %llu",
                       (unsigned long long)file_size, (unsigned long long)size);
    *count = nb_read_u32(head + 24);
    if (*count == 0 || *count > SECTIONS)
        return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "%u sections, allowed are 1 to %d", *count, SECTIONS);
    size_t bytes = HEADER + (size_t)*count * ENTRY;
    if (size < bytes) return nb_fail(err, NB_INTEGRITY, "E_MODEL_TRUNCATED", "ends inside its section table");
    s = read_fully(fd, head, bytes, err);
    if (s) return s;
    uint8_t copy[HEADER + SECTIONS * ENTRY];
    memcpy(copy, head, bytes);
    memset(copy + 28, 0, 4);
    if (nb_crc32c(0, copy, bytes) != nb_read_u32(head + 28))
        return nb_fail(err, NB_INTEGRITY, "E_MODEL_CHECKSUM", "the header's checksum does not match");
    if (nb_read_u32(head + 12))
        return nb_fail(err, NB_INPUT, "E_MODEL_FEATURE", "needs feature bits %08x that this program does not know",
                       nb_read_u32(head + 12));
    return NB_OK;
}

static enum nb_status map_file(struct nb_model *m, int fd, size_t size, enum nb_map_mode mode, struct nb_error *err) {
    void *base;
    if (mode == NB_MAP_READ) {
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) return nb_fail(err, NB_RESOURCE, "E_MODEL_MEMORY", "no memory for a copy of %zu bytes", size);
#ifdef MADV_HUGEPAGE
        (void)madvise(base, size, MADV_HUGEPAGE);
#endif
        enum nb_status s = read_fully(fd, base, size, err);
        if (!s) (void)mprotect(base, size, PROT_READ);
        m->base = base;
        m->size = size;
        m->mode = mode;
        return s;
    }
    base = mmap(NULL, size, PROT_READ, MAP_PRIVATE | (mode == NB_MAP_POPULATE ? MAP_POPULATE : 0), fd, 0);
    if (base == MAP_FAILED) return nb_fail(err, NB_RESOURCE, "E_MODEL_MEMORY", "cannot be mapped: %s", strerror(errno));
    if (mode == NB_MAP_AUTO) (void)madvise(base, size, MADV_WILLNEED);
    m->base = base;
    m->size = size;
    m->mode = mode;
    return NB_OK;
}

static enum nb_status check_zeros(const struct nb_model *m, uint64_t from, uint64_t to, struct nb_error *err) {
    for (uint64_t i = from; i < to; i++)
        if (m->base[i])
            return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "byte %llu between sections is not zero", (unsigned long long)i);
    return NB_OK;
}

/* Section entries in order; the small sections' checksums. */
static enum nb_status check_sections(struct nb_model *m, const uint8_t *head, uint32_t count, struct nb_error *err) {
    uint64_t end = HEADER + (uint64_t)count * ENTRY;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *e = head + HEADER + (size_t)i * ENTRY;
        uint32_t kind = nb_read_u32(e), flags = nb_read_u32(e + 4);
        uint64_t offset = nb_read_u64(e + 8), size = nb_read_u64(e + 16);
        if (offset % ALIGN || offset < end || !nb_inside(offset, size, m->size) || flags > 1 || nb_read_u32(e + 28))
            return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "section %u (%.4s): bad place, flags or size", i, (const char *)e);
        enum nb_status s = check_zeros(m, end, offset, err);
        if (s) return s;
        end = offset + size;
        struct nb_section *known = section(m, kind);
        if (!known && (flags & 1))
            return nb_fail(err, NB_INPUT, "E_MODEL_FEATURE", "needs section %.4s that this program does not know",
                           (const char *)e);
        if (known && known->data) return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "section %.4s occurs twice", (const char *)e);
        for (uint32_t j = 0; j < i; j++)
            if (nb_read_u32(head + HEADER + (size_t)j * ENTRY) == kind)
                return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "section %.4s occurs twice", (const char *)e);
        uint32_t crc = known == &m->weights ? 0 : nb_crc32c(0, m->base + offset, (size_t)size);
        if (crc != nb_read_u32(e + 24))
            return nb_fail(err, NB_INTEGRITY, "E_MODEL_CHECKSUM", "section %.4s: checksum does not match", (const char *)e);
        if (known) *known = (struct nb_section){m->base + offset, (size_t)size};
    }
    if (!m->spec_section.data || !m->tensors.data || !m->weights.data || !m->checksums.data)
        return nb_fail(err, NB_INPUT, "E_MODEL_SECTION", "a section of SPEC, TENS, WGTS, CSUM is missing");
    return check_zeros(m, end, m->size, err);
}

static enum nb_status bad_spec(struct nb_error *err, const char *what) {
    return nb_fail(err, NB_INPUT, "E_MODEL_SPEC", "feature record: %s", what);
}

static enum nb_status check_numbers(const struct nb_spec *s, struct nb_error *err) {
    if (s->hidden == 0 || s->hidden > MAX_WIDTH || s->ffn == 0 || s->ffn > MAX_WIDTH)
        return bad_spec(err, "hidden or ffn is 0 or too large");
    if (s->heads == 0 || s->heads > MAX_WIDTH || s->kv_heads == 0 || s->heads % s->kv_heads)
        return bad_spec(err, "heads is not a multiple of kv_heads");
    if (s->head_dim == 0 || s->head_dim > MAX_HEAD_DIM || s->head_dim % 2 || s->head_dim > MAX_WIDTH / s->heads)
        return bad_spec(err, "head_dim is 0, odd or too large");
    if (s->vocab == 0 || s->vocab > MAX_VOCAB) return bad_spec(err, "vocab is 0 or too large");
    if (s->max_positions == 0 || s->max_positions > MAX_POSITIONS) return bad_spec(err, "max_positions is 0 or too large");
    if (s->layers == 0 || s->layers > MAX_LAYERS || s->ropes == 0 || s->ropes > MAX_ROPES)
        return bad_spec(err, "layers or ropes is 0 or too large");
    if (s->activation > NB_ACT_GELU_TANH) return bad_spec(err, "unknown activation");
    if (s->flags & ~(uint32_t)(NB_SPEC_QK_NORM | NB_SPEC_POST_NORMS | NB_SPEC_TIED)) return bad_spec(err, "unknown flags");
    if (!isfinite(s->norm_eps) || s->norm_eps < 0 || !isfinite(s->attn_scale) || !isfinite(s->embed_scale))
        return bad_spec(err, "norm_eps, attn_scale or embed_scale is not a finite number");
    return NB_OK;
}

static enum nb_status read_ropes(struct nb_model *m, size_t at, struct nb_error *err) {
    const struct nb_section *sec = &m->spec_section;
    for (uint32_t i = 0; i < m->spec.ropes; i++) {
        if (!nb_inside(at, 4, sec->size)) return bad_spec(err, "too short");
        uint32_t n = nb_read_u32(sec->data + at);
        at += 4;
        if (n > m->spec.head_dim / 2 || !nb_inside(at, (uint64_t)n * 4, sec->size))
            return bad_spec(err, "bad number of rotation frequencies");
        for (uint32_t j = 0; j < n; j++) {
            float f = nb_read_f32(sec->data + at + (size_t)j * 4);
            /* |position * frequency| below 2^25 keeps the reduction of an angle exact enough and inside int32 */
            if (!isfinite(f) || fabsf(f) > 2.0f) return bad_spec(err, "a rotation frequency is out of range");
        }
        m->ropes[i] = (struct nb_rope_set){n, (const float *)(const void *)(sec->data + at)};
        at += (size_t)n * 4;
    }
    return at == sec->size ? NB_OK : bad_spec(err, "bytes left over");
}

static enum nb_status read_spec(struct nb_model *m, struct nb_error *err) {
    const struct nb_section *sec = &m->spec_section;
    struct nb_spec *s = &m->spec;
    if (sec->size < 64) return bad_spec(err, "too short");
    uint32_t *const number[11] = {&s->hidden,        &s->ffn,    &s->heads, &s->kv_heads,   &s->head_dim, &s->vocab,
                                  &s->max_positions, &s->layers, &s->ropes, &s->activation, &s->flags};
    for (size_t i = 0; i < 11; i++) *number[i] = nb_read_u32(sec->data + 4 * i);
    s->norm_eps = nb_read_f32(sec->data + 44);
    s->attn_scale = nb_read_f32(sec->data + 48);
    s->embed_scale = nb_read_f32(sec->data + 52);
    if (nb_read_u32(sec->data + 56) || nb_read_u32(sec->data + 60)) return bad_spec(err, "reserved fields are not 0");
    enum nb_status status = check_numbers(s, err);
    if (status) return status;
    if (!nb_inside(64, (uint64_t)s->layers * 8, sec->size)) return bad_spec(err, "too short");
    size_t layer_bytes = s->layers * sizeof *m->layers; /* bounded by MAX_LAYERS and MAX_ROPES */
    m->layers = calloc(1, layer_bytes + s->ropes * sizeof *m->ropes);
    if (!m->layers) return nb_fail(err, NB_RESOURCE, "E_MODEL_MEMORY", "no memory for %u layers", s->layers);
    m->ropes = (struct nb_rope_set *)(void *)((char *)m->layers + layer_bytes);
    for (uint32_t i = 0; i < s->layers; i++) {
        m->layers[i].rope = nb_read_u32(sec->data + 64 + (size_t)i * 8);
        m->layers[i].window = nb_read_u32(sec->data + 68 + (size_t)i * 8);
        if (m->layers[i].rope >= s->ropes) return bad_spec(err, "a layer names a rope that does not exist");
    }
    return read_ropes(m, 64 + (size_t)s->layers * 8, err);
}

static enum nb_status open_fd(struct nb_model *m, int fd, enum nb_map_mode mode, struct nb_error *err) {
    struct stat st;
    if (fstat(fd, &st)) return nb_fail(err, NB_INPUT, "E_MODEL_OPEN", "cannot be examined: %s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return nb_fail(err, NB_INPUT, "E_MODEL_OPEN", "is not a regular file");
    uint64_t size = (uint64_t)st.st_size;
    if (size > SIZE_MAX / 2) return nb_fail(err, NB_RESOURCE, "E_MODEL_MEMORY", "does not fit into this machine's address space");
    uint8_t head[HEADER + SECTIONS * ENTRY];
    uint32_t count = 0;
    enum nb_status s = read_header(fd, size, head, &count, err);
    if (!s) s = map_file(m, fd, (size_t)size, mode, err);
    if (!s && memcmp(m->base, head, HEADER + (size_t)count * ENTRY))
        s = nb_fail(err, NB_INTEGRITY, "E_MODEL_CHECKSUM", "changed while it was being opened");
    if (!s) s = check_sections(m, head, count, err);
    if (!s) s = read_spec(m, err);
    if (!s) s = nb_model_tensors(m, err);
    if (!s) s = nb_model_checksums(m, err);
    return s;
}

enum nb_status nb_model_open(struct nb_model *m, const char *path, enum nb_map_mode mode, struct nb_error *err) {
    *m = (struct nb_model){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nb_fail(err, NB_INPUT, "E_MODEL_OPEN", "cannot be opened: %s", strerror(errno));
    enum nb_status s = open_fd(m, fd, mode, err);
    close(fd);
    if (s) nb_model_close(m);
    return s;
}

void nb_model_close(struct nb_model *m) {
    free(m->layers);
    if (m->base) munmap((void *)(uintptr_t)m->base, m->size);
    *m = (struct nb_model){0};
}
