/* SPDX-License-Identifier: Apache-2.0
 * One row per flag; numbers are taken only whole and in range, so that a slip of the finger is not run. */
#include "runtime/args.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/sampler.h"

const char nb_help[] =
    "usage: run --prompt TEXT [options]        the model is model.nano beside this program\n"
    "\n"
    "  -p, --prompt TEXT      text to continue\n"
    "  -f, --file FILE        take it from a file; - is standard input\n"
    "  -i, --interactive      a conversation, line by line (needs a chat template)\n"
    "      --chat, -st        put the prompt into the chat template; one answer\n"
    "      --system TEXT      system text of the chat\n"
    "  -n, --max-tokens N     most tokens to generate (256); 0: only read the prompt\n"
    "      --stop TEXT        end before this text; up to 4 times\n"
    "      --temp T           0 (default): always the likeliest token; up to 2\n"
    "      --top-k N, --top-p P, --min-p P     candidates that stay (40, 0.95, 0)\n"
    "      --repeat-penalty R     on tokens among the last 64 (1: off)\n"
    "  -s, --seed N           same seed, same text (0)\n"
    "\n"
    "  -m, --model FILE       another model file\n"
    "  -c, --ctx N            positions of context (what the model allows, at most 2048)\n"
    "  -t, --threads N        threads (one for each fast core that may be used; also NB_THREADS)\n"
    "      --kv f16|i8        type of the key/value cache (f16)\n"
    "      --mmap-mode auto|populate|lazy|read\n"
    "      --chunk N          most prompt tokens in one pass (512)\n"
    "      --isa LEVELS       use only these levels, e.g. scalar,avx2 (also NB_ISA)\n"
    "\n"
    "      --ids              print token ids instead of text\n"
    "      --logits FILE      write the last logits (raw float32); --logits-all FILE: of every position\n"
    "      --show [--json]    what is in the model file\n"
    "      --verify           check every checksum of the weights\n"
    "      --kernels          which kernel each operator uses\n"
    "      --bench            time prompt and generation, JSON (--bench-prefill N --bench-decode N --bench-depth N --reps N)\n"
    "      --bench-start      what one short run costs in time and memory, JSON (--bench-prefill N --bench-decode N)\n"
    "      --bandwidth        time plain reading of the weights, JSON\n"
    "  -q, --quiet            no report line\n"
    "  -h, --help, --version\n"
    "\n"
    "exit codes: 0 done, 2 usage, 3 input refused, 4 damaged model file, 5 memory or disk, 6 processor, 130/143 interrupted\n";

enum kind { FLAG, TEXT, COUNT, SEED, REAL, STOP, CHOICE, ACTION };

struct row {
    const char *name, *other;
    enum kind kind;
    size_t at;          /* offset in struct nb_args */
    uint32_t low, high; /* COUNT: range; ACTION: value in low */
    const char *words;  /* CHOICE: "auto|populate", the value is the place */
};

#define AT(field) offsetof(struct nb_args, field)
static const struct row rows[] = {
    {"-p", "--prompt", TEXT, AT(prompt), 0, 0, NULL},
    {"-f", "--file", TEXT, AT(file), 0, 0, NULL},
    {"-i", "--interactive", FLAG, AT(interactive), 0, 0, NULL},
    {"--chat", "-st", FLAG, AT(chat), 0, 0, NULL},
    {"--system", NULL, TEXT, AT(system), 0, 0, NULL},
    {"-n", "--max-tokens", COUNT, AT(generation.max_tokens), 0, INT32_MAX, NULL},
    {"--stop", NULL, STOP, 0, 0, 0, NULL},
    {"--temp", "--temperature", REAL, AT(generation.temperature), 0, 0, NULL},
    {"--top-k", NULL, COUNT, AT(generation.top_k), 0, INT32_MAX, NULL},
    {"--top-p", NULL, REAL, AT(generation.top_p), 0, 0, NULL},
    {"--min-p", NULL, REAL, AT(generation.min_p), 0, 0, NULL},
    {"--repeat-penalty", NULL, REAL, AT(generation.repeat), 0, 0, NULL},
    {"-s", "--seed", SEED, AT(generation.seed), 0, 0, NULL},
    {"-m", "--model", TEXT, AT(model), 0, 0, NULL},
    {"-c", "--ctx", COUNT, AT(options.context), 1, INT32_MAX, NULL},
    {"-t", "--threads", COUNT, AT(options.threads), 1, 256, NULL},
    {"--kv", NULL, CHOICE, AT(options.kv), 0, 0, "f16|i8"},
    {"--mmap-mode", NULL, CHOICE, AT(options.map_mode), 0, 0, "auto|populate|lazy|read"},
    {"--chunk", NULL, COUNT, AT(options.chunk), 1, 4096, NULL},
    {"--isa", NULL, TEXT, AT(options.isa), 0, 0, NULL},
    {"--ids", NULL, FLAG, AT(ids), 0, 0, NULL},
    {"--logits", NULL, TEXT, AT(logits), 0, 0, NULL},
    {"--logits-all", NULL, TEXT, AT(logits_all), 0, 0, NULL},
    {"--json", NULL, FLAG, AT(json), 0, 0, NULL},
    {"--show", NULL, ACTION, 0, NB_SHOW, 0, NULL},
    {"--verify", NULL, ACTION, 0, NB_VERIFY, 0, NULL},
    {"--kernels", NULL, ACTION, 0, NB_KERNELS, 0, NULL},
    {"--bench", NULL, ACTION, 0, NB_BENCH, 0, NULL},
    {"--bench-start", NULL, ACTION, 0, NB_BENCH_START, 0, NULL},
    {"--bench-prefill", NULL, COUNT, AT(bench_prefill), 0, INT32_MAX, NULL},
    {"--bench-decode", NULL, COUNT, AT(bench_decode), 0, INT32_MAX, NULL},
    {"--bench-depth", NULL, COUNT, AT(bench_depth), 0, INT32_MAX, NULL},
    {"--reps", NULL, COUNT, AT(reps), 1, 1000, NULL},
    {"--bandwidth", NULL, ACTION, 0, NB_BANDWIDTH, 0, NULL},
    {"-q", "--quiet", FLAG, AT(quiet), 0, 0, NULL},
    {"-h", "--help", ACTION, 0, NB_HELP, 0, NULL},
    {"--version", NULL, ACTION, 0, NB_VERSION, 0, NULL},
};

static const struct row *find(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, name) || (rows[i].other && !strcmp(rows[i].other, name))) return &rows[i];
    return NULL;
}

/* Whole unsigned decimal number up to `high`. */
static int whole(const char *text, uint64_t high, uint64_t *value) {
    char *end;
    if (*text < '0' || *text > '9') return 0;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    *value = v;
    return !*end && !errno && v <= high;
}

static int real(const char *text, float *value) {
    char *end;
    if (!*text || strchr(" \t\n+", *text)) return 0;
    *value = strtof(text, &end);
    return !*end;
}

static int choice(const char *words, const char *text, uint32_t *value) {
    size_t length = strlen(text);
    for (uint32_t i = 0;; i++) {
        size_t n = strcspn(words, "|");
        *value = i;
        if (n == length && !memcmp(words, text, n)) return 1;
        if (!words[n]) return 0;
        words += n + 1;
    }
}

static enum nb_status store(struct nb_args *a, const struct row *row, const char *value, struct nb_error *err) {
    char *place = (char *)a + row->at;
    uint64_t number;
    switch (row->kind) {
    case TEXT: *(const char **)(void *)place = value; return NB_OK;
    case REAL:
        if (real(value, (float *)(void *)place)) return NB_OK;
        return nb_fail(err, NB_USAGE, "E_USAGE", "%s: '%.60s' is not a number", row->name, value);
    case SEED:
        if (whole(value, UINT64_MAX, (uint64_t *)(void *)place)) return NB_OK;
        return nb_fail(err, NB_USAGE, "E_USAGE", "%s: '%.60s' is not a whole number below 2^64", row->name, value);
    case COUNT:
        if (!whole(value, row->high, &number) || number < row->low)
            return nb_fail(err, NB_USAGE, "E_USAGE", "%s: '%.60s', allowed are %u to %u", row->name, value, row->low, row->high);
        *(uint32_t *)(void *)place = (uint32_t)number;
        return NB_OK;
    case CHOICE:
        if (choice(row->words, value, (uint32_t *)(void *)place)) return NB_OK;
        return nb_fail(err, NB_USAGE, "E_USAGE", "%s: '%.60s', allowed are %s", row->name, value, row->words);
    case STOP:
        if (a->generation.stop_count == 4) return nb_fail(err, NB_USAGE, "E_USAGE", "--stop: more than 4");
        a->generation.stop[a->generation.stop_count++] = value;
        return NB_OK;
    default: return NB_OK;
    }
}

static enum nb_status check(struct nb_args *a, struct nb_error *err) {
    a->no_tokens = a->generation.max_tokens == 0;
    a->options.all_logits = a->logits_all != NULL;
    if (a->action != NB_GENERATE) return NB_OK;
    if (a->prompt && a->file) return nb_fail(err, NB_USAGE, "E_USAGE", "--prompt and --file exclude each other");
    if (!a->prompt && !a->file && !a->interactive)
        return nb_fail(err, NB_USAGE, "E_USAGE", "nothing to do: give --prompt TEXT, --file FILE or --interactive");
    if (a->interactive && (a->ids || a->logits || a->logits_all))
        return nb_fail(err, NB_USAGE, "E_USAGE", "--interactive goes with text only");
    return NB_OK;
}

enum nb_status nb_args_parse(struct nb_args *a, int argc, char **argv, struct nb_error *err) {
    *a = (struct nb_args){.options = {.size = sizeof a->options},
                          .generation = {.size = sizeof a->generation,
                                         .max_tokens = 256,
                                         .top_p = 0.95f,
                                         .repeat = 1,
                                         .top_k = 40,
                                         .repeat_window = NB_REPEAT_WINDOW},
                          .bench_prefill = 512,
                          .bench_decode = 64,
                          .reps = 3};
    a->options.isa = getenv("NB_ISA");
    const char *threads = getenv("NB_THREADS");
    if (threads && store(a, find("--threads"), threads, err)) return NB_USAGE;
    for (int i = 1; i < argc; i++) {
        const struct row *row = find(argv[i]);
        if (!row) return nb_fail(err, NB_USAGE, "E_USAGE", "'%.60s' is not an option; --help lists them", argv[i]);
        if (row->kind == ACTION) a->action = (enum nb_action)row->low;
        else if (row->kind == FLAG) *(uint32_t *)(void *)((char *)a + row->at) = 1;
        else if (i + 1 == argc) return nb_fail(err, NB_USAGE, "E_USAGE", "%s: its value is missing", argv[i]);
        else if (store(a, row, argv[++i], err)) return NB_USAGE;
    }
    return check(a, err);
}
