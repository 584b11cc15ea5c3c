/* SPDX-License-Identifier: Apache-2.0
 * Descriptions for people and scripts. Texts that come from the file are escaped. */
#include "runtime/describe.h"

#include <stdarg.h>
#include <string.h>

#include "runtime/engine.h"
#include "runtime/model_internal.h"

void nb_text_add(struct nb_text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t left = t->length < t->size ? t->size - t->length : 0;
    int n = vsnprintf(left ? t->out + t->length : NULL, left, format, args);
    va_end(args);
    t->length += n > 0 ? (size_t)n : 0;
}

void nb_text_json(struct nb_text *t, const char *bytes, size_t n) {
    nb_text_add(t, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\') nb_text_add(t, "\\%c", c);
        else if (c < 32 || c > 126) nb_text_add(t, "\\u%04x", c);
        else nb_text_add(t, "%c", c);
    }
    nb_text_add(t, "\"");
}

static void add_spec(struct nb_text *t, const struct nb_spec *s) {
    nb_text_add(
        t,
        "\"hidden\":%u,\"ffn\":%u,\"heads\":%u,\"kv_heads\":%u,\"head_dim\":%u,\"vocab\":%u,\"max_positions\":%u,\"layers\":%u,"
        "\"ropes\":%u,\"activation\":\"%s\",\"qk_norm\":%s,\"post_norms\":%s,\"tied\":%s,\"norm_eps\":%.9g,\"attn_scale\":%.9g,"
        "\"embed_scale\":%.9g",
        s->hidden, s->ffn, s->heads, s->kv_heads, s->head_dim, s->vocab, s->max_positions, s->layers, s->ropes,
        s->activation == NB_ACT_SILU ? "silu" : "gelu_tanh", s->flags & NB_SPEC_QK_NORM ? "true" : "false",
        s->flags & NB_SPEC_POST_NORMS ? "true" : "false", s->flags & NB_SPEC_TIED ? "true" : "false", (double)s->norm_eps,
        (double)s->attn_scale, (double)s->embed_scale);
}

static void add_identity(struct nb_text *t, const struct nb_model *m) {
    nb_text_add(t, "\"sha256\":\"");
    for (int i = 0; i < 32; i++) nb_text_add(t, "%02x", m->base[32 + i]);
    nb_text_add(t, "\",\"bytes\":%zu", m->size);
}

size_t nb_info(const struct nb_engine *e, char *out, size_t size) {
    static const char *const modes[] = {"auto", "populate", "lazy", "read"};
    const struct nb_graph *g = &e->graph;
    struct nb_text t = {out, size, 0};
    nb_text_add(&t, "{\"model\":{");
    add_identity(&t, &e->model);
    nb_text_add(&t, ",");
    add_spec(&t, &e->model.spec);
    nb_text_add(&t, "},\"threads\":%u,\"isa\":\"%s\",\"cpu\":\"%s\",\"context\":%u,\"chunk\":%u,\"kv\":\"%s\",\"map\":\"%s\",",
                nb_pool_threads(e->pool), nb_isa_name(e->hal.isa), nb_isa_name(nb_cpu_isa()), g->context, g->chunk,
                g->kv->type == NB_KV_I8 ? "i8" : "f16", modes[e->model.mode]);
    nb_text_add(&t, "\"memory\":{\"arena\":%zu,\"kv\":%zu,\"activations\":%zu,\"threads\":%zu,\"text\":%zu},\"token_bytes\":%zu,",
                g->arena_size, g->kv_size, g->activation_size, g->scratch_size, g->extra_size, nb_graph_token_bytes(g));
    nb_text_add(&t, "\"tokens\":%u,\"bos\":%d,\"stop_ids\":[", e->tokens, e->has_tokenizer ? e->tokenizer.bos : -1);
    for (uint32_t i = 0; e->has_tokenizer && i < e->tokenizer.stop_count; i++)
        nb_text_add(&t, "%s%d", i ? "," : "", e->tokenizer.stops[i]);
    nb_text_add(&t, "],\"chat\":%s,\"meta\":", e->chat.count ? "true" : "false");
    nb_text_json(&t, (const char *)e->model.meta.data, e->model.meta.size);
    nb_text_add(&t, "}");
    return t.length;
}

size_t nb_kernel_list(const struct nb_hal *hal, char *out, size_t size) {
    struct nb_text t = {out, size, 0};
#define NB_SLOT(type, name) nb_text_add(&t, "%-16s %s\n", #name, hal->name##_name ? hal->name##_name : "-");
#include "hal/slots.def"
#undef NB_SLOT
    return t.length;
}

size_t nb_kernels(const struct nb_engine *e, char *out, size_t size) { return nb_kernel_list(&e->hal, out, size); }

const char *nb_isa(const struct nb_engine *e) { return nb_isa_name(e->hal.isa); }

uint64_t nb_number(const struct nb_engine *e, uint32_t which) {
    switch (which) {
    case NB_POSITION: return e->graph.position;
    case NB_CONTEXT: return e->graph.context;
    case NB_VOCAB: return e->model.spec.vocab;
    case NB_TOKENS: return e->tokens;
    case NB_THREADS: return nb_pool_threads(e->pool);
    case NB_CHUNK: return e->graph.chunk;
    case NB_HAS_TOKENIZER: return (uint64_t)e->has_tokenizer;
    case NB_HAS_CHAT: return e->chat.count > 0;
    case NB_TOKEN_BYTES: return nb_graph_token_bytes(&e->graph);
    default: return 0;
    }
}

enum nb_status nb_verify(const struct nb_engine *e, struct nb_error *err) { return nb_model_verify(&e->model, &e->stop, err); }

static const char *format_name(uint32_t format) {
    static const char *const names[NB_FORMATS] = {"f32", "q4g16s8", "q4g32s8", "q8g32s8"};
    return names[format];
}

static void show_tensors(const struct nb_model *m, int json, FILE *to) {
    char name[40];
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        struct nb_tensor t = nb_model_tensor(m, i);
        nb_tensor_name(t.role, t.layer, name);
        if (json)
            fprintf(to,
                    "%s{\"name\":\"%s\",\"format\":\"%s\",\"group\":%u,\"rows\":%u,\"cols\":%u,\"bytes\":%llu,\"crc\":\"%08x\"}",
                    i ? "," : "", name, format_name(t.format), t.group, t.rows, t.cols, (unsigned long long)t.size, t.crc);
        else
            fprintf(to, "%-26s %-8s group %3u  %7u x %-6u %12llu bytes\n", name, format_name(t.format), t.group, t.rows, t.cols,
                    (unsigned long long)t.size);
    }
}

void nb_show(const struct nb_model *m, int json, FILE *to) {
    static char buffer[8192];
    struct nb_text t = {buffer, sizeof buffer, 0};
    add_identity(&t, m);
    nb_text_add(&t, ",");
    add_spec(&t, &m->spec);
    if (json) {
        fprintf(to, "{%s,\"tensors\":[", buffer);
        show_tensors(m, 1, to);
        t.length = 0;
        nb_text_json(&t, (const char *)m->meta.data, m->meta.size);
        fprintf(to, "],\"meta\":%s}\n", t.length < t.size ? buffer : "\"\"");
        return;
    }
    for (char *c = buffer; *c; c++) {
        if (*c == ',') *c = '\n';
        if (*c == ':') *c = ' ';
        if (*c != '"') fputc(*c, to);
    }
    fputc('\n', to);
    show_tensors(m, 0, to);
}
