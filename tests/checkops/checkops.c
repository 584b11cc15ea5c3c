/* SPDX-License-Identifier: Apache-2.0
 * checkops: every kernel of this build equals the scalar one bit for bit, on adversarial inputs, odd sizes, buffers
 * between guard pages and every subset of this CPU's levels. No tolerance anywhere. */
#include "checkops.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct check_op *const ops[] = {&check_matmul, &check_quantize, &check_rmsnorm,  &check_rope,   &check_gated,
                                             &check_add,    &check_embed,    &check_kv_store, &check_attend, &check_attend_join};
enum { OPS = sizeof ops / sizeof *ops, BUFFERS = 64, SLACK = 0xa5 };

/* Slots that every level leaves to the scalar kernel: add is memory traffic, embed one row a token. */
static const char *const left_to_scalar[] = {"add", "embed"};

static struct check *running; /* for the signal handler only */

uint64_t check_random(struct check *c) {
    uint64_t z = c->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t check_below(struct check *c, uint32_t n) { return (uint32_t)((check_random(c) >> 32) * n >> 32); }

uint32_t check_pick(struct check *c, const uint32_t *from, size_t n) { return from[check_below(c, (uint32_t)n)]; }

float check_float(struct check *c, float low, float high) {
    return low + (high - low) * (float)(check_random(c) >> 40) * 0x1p-24f;
}

static struct buffer {
    uint8_t *map, *data;
    size_t mapped, size;
} buffers[BUFFERS];
static size_t buffer_count;

void *check_buffer(struct check *c, size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (size + page - 1) / page * page;
    if (buffer_count == BUFFERS) abort();
    struct buffer *b = &buffers[buffer_count++];
    b->mapped = inside + 2 * page;
    b->map = mmap(NULL, b->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED || (inside && mprotect(b->map + page, inside, PROT_READ | PROT_WRITE))) {
        perror("checkops: mmap");
        exit(4);
    }
    memset(b->map + page, SLACK, inside);
    b->size = size;
    b->data = b->map + page + (check_below(c, 4) ? inside - size : 0); /* mostly flush with the end */
    return b->data;
}

void *check_copy(struct check *c, const void *from, size_t size) {
    void *to = check_buffer(c, size);
    memcpy(to, from, size);
    return to;
}

void check_free_all(struct check *c) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < buffer_count; i++) {
        struct buffer *b = &buffers[i];
        for (uint8_t *at = b->map + page; at < b->map + b->mapped - page; at++)
            if ((at < b->data || at >= b->data + b->size) && *at != SLACK) {
                printf("FAIL %s: %s: wrote outside a buffer\n", c->kernel, c->about);
                c->failures++;
                break;
            }
        munmap(b->map, b->mapped);
    }
    buffer_count = 0;
}

const char *check_fill_name(enum fill fill) {
    static const char *const names[FILLS] = {"normal", "zero", "extreme", "range", "tiny", "one_big"};
    return names[fill];
}

void check_fill(struct check *c, float *x, size_t n, enum fill fill) {
    const size_t big = n ? check_below(c, (uint32_t)n) : 0;
    for (size_t i = 0; i < n; i++) {
        const float sign = check_below(c, 2) ? 1.0f : -1.0f;
        switch (fill) {
        case FILL_NORMAL: x[i] = check_float(c, -4, 4); break;
        case FILL_ZERO: x[i] = sign * 0.0f; break;
        case FILL_EXTREME: x[i] = sign * (check_below(c, 3) ? 1e4f : 9.999e3f); break;
        case FILL_RANGE: x[i] = sign * ldexpf(1.0f + check_float(c, 0, 1), (int)check_below(c, 60) - 40); break;
        case FILL_TINY: x[i] = sign * ldexpf(check_float(c, 0, 1), -149 + (int)check_below(c, 60)); break;
        default: x[i] = i == big ? sign * 3e4f : check_float(c, -1e-3f, 1e-3f); break;
        }
    }
}

void check_begin(struct check *c, const char *kernel, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->about, sizeof c->about, format, args);
    va_end(args);
    c->kernel = kernel;
    c->cases++;
}

void check_same(struct check *c, const char *what, const void *have, const void *want, size_t size, size_t element) {
    if (size == 0 || memcmp(have, want, size) == 0) return;
    size_t at = 0;
    while (((const uint8_t *)have)[at] == ((const uint8_t *)want)[at]) at++;
    at -= at % element;
    uint32_t h = 0, w = 0;
    memcpy(&h, (const uint8_t *)have + at, element);
    memcpy(&w, (const uint8_t *)want + at, element);
    if (c->failures++ < 20) printf("FAIL %s: %s: %s[%zu] is %08x, not %08x\n", c->kernel, c->about, what, at / element, h, w);
}

#ifdef __x86_64__
#define ANY_STACK __attribute__((force_align_arg_pointer)) /* QEMU 7.2 calls handlers with a stack that is off by 8 */
#else
#define ANY_STACK
#endif

ANY_STACK static void on_signal(int number) {
    char line[400];
    const int n = snprintf(line, sizeof line, "FAIL %s: %s: %s\n", running ? running->kernel : "?",
                           running ? running->about : "?", number == SIGILL ? "illegal instruction" : "bad memory access");
    if (n > 0 && write(STDOUT_FILENO, line, (size_t)n) < 0) _exit(3);
    _exit(1);
}

static int listed(const char *slot) {
    for (size_t i = 0; i < sizeof left_to_scalar / sizeof *left_to_scalar; i++)
        if (!strcmp(slot, left_to_scalar[i])) return 1;
    return 0;
}

/* Each slot's kernel; with `level`, counts the slots that it should have filled: none may be scalar but those listed, and a
 * level that is there for its matrix products must have brought them. */
static int print_kernels(const struct nb_hal *hal, const char *level) {
    int missing = 0;
    const int vector = level && strcmp(level, "scalar") != 0;
#define NB_SLOT(type, name)                                                                                                      \
    {                                                                                                                            \
        const char *suffix = strstr(hal->name##_name, "__") + 2;                                                                 \
        const int own = !strncmp(#name, "gemm_", 5),                                                                             \
                  fell_back = vector && !listed(#name) && (own ? strcmp(suffix, level) : !strcmp(suffix, "scalar"));             \
        printf("%-14s %s%s\n", #name, hal->name##_name, fell_back ? "   <- fell back" : "");                                     \
        missing += fell_back;                                                                                                    \
    }
#include "hal/slots.def"
#undef NB_SLOT
    return missing;
}

static int run_checks(uint32_t isa, const char *only, uint64_t seed, unsigned rounds) {
    struct nb_hal want, have;
    nb_hal_init(&want, 0);
    nb_hal_init(&have, isa);
    int failed = 0;
    for (size_t i = 0; i < OPS; i++) {
        if (only && strcmp(only, ops[i]->name) != 0) continue;
        struct check c = {.want = &want, .have = &have, .state = seed, .rounds = rounds, .kernel = "?"};
        running = &c;
        ops[i]->check(&c);
        printf("%-4s %-12s isa %-10s %6u cases\n", c.failures ? "FAIL" : "ok", ops[i]->name, nb_isa_name(have.isa), c.cases);
        failed |= c.failures != 0;
    }
    running = NULL;
    return failed;
}

static int usage(void) {
    fputs("usage: checkops [--list] [--expect LEVEL] [--isa LEVELS] [--whole] [--op NAME] [--seed N] [--rounds N] [--bench]\n"
          "--isa does not ask the CPU; --whole: these levels together, not every subset of them\n",
          stderr);
    return 2;
}

int main(int argc, char **argv) {
    uint32_t isa = nb_cpu_isa();
    uint64_t seed = 1;
    unsigned rounds = 8;
    int list = 0, bench = 0, whole = 0;
    const char *expect = NULL, *only = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--list")) list = 1;
        else if (!strcmp(argv[i], "--bench")) bench = 1;
        else if (!strcmp(argv[i], "--whole")) whole = 1;
        else if (!value) return usage();
        else if (!strcmp(argv[i], "--expect")) expect = argv[++i];
        else if (!strcmp(argv[i], "--op")) only = argv[++i];
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--rounds")) rounds = (unsigned)strtoul(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--isa") && nb_isa_parse(value, &isa)) i++;
        else return usage();
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* what was printed is seen, whatever a kernel does */
    struct nb_hal hal;
    nb_hal_init(&hal, isa);
    printf("checkops: isa %s, seed %llu\n", nb_isa_name(hal.isa), (unsigned long long)seed);
    const int missing = print_kernels(&hal, expect);
    if (missing || (expect && strcmp(expect, nb_isa_name(hal.isa)) != 0)) {
        printf("FAIL: this is not a complete %s\n", expect);
        return 1;
    }
    if (list) return 0;
    if (bench) {
        bench_limits(&hal);
        for (size_t i = 0; i < OPS; i++)
            if (ops[i]->bench && (!only || !strcmp(only, ops[i]->name))) ops[i]->bench(&hal);
        return 0;
    }
    signal(SIGILL, on_signal);
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    int failed = 0;
    uint32_t subset = whole ? hal.isa : 0;
    do {
        failed |= run_checks(subset, only, seed, rounds);
        subset = (subset - hal.isa) & hal.isa; /* the next subset of the mask; 0 again after the last */
    } while (subset);
    printf(failed ? "FAIL\n" : "all kernels equal the scalar ones\n");
    return failed;
}
