/* SPDX-License-Identifier: Apache-2.0
 * The program: text in, text out. Text goes to stdout as soon as it is known, everything else to stderr; the exit codes
 * are those of error.h. The only file that prints and exits. */
#define _GNU_SOURCE /* memrchr */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/args.h"
#include "runtime/bench.h"
#include "runtime/crc32c.h"
#include "runtime/describe.h"

enum { LINE_MAX_BYTES = 65536, FILE_MAX_BYTES = 64 << 20, PATH_BYTES = 4096 };

static struct nb_engine *engine;
static volatile sig_atomic_t signal_seen;

struct run {
    struct nb_args args;
    char model[PATH_BYTES];
    const char *subject;    /* what an error is about */
    int32_t *ids;           /* (context) */
    int logits, logits_all; /* files, -1: none */
    int reader_gone;        /* whoever read stdout wants no more */
    double started, ready, fed, first, ended;
    size_t prompt_tokens;
    uint32_t steps, tokens; /* passes and tokens of generation */
};

static void on_signal(int number) {
    if (signal_seen) _exit(128 + number);
    signal_seen = number;
    if (engine) nb_stop(engine);
}

static void on_bus(int number) {
    static const char text[] =
        "nano-build: error[E_MODEL_IO]: model.nano: its file was cut or its disk failed while it was in use\n";
    static char said; /* several threads may meet it at once */
    (void)number;
    while (__atomic_test_and_set(&said, __ATOMIC_SEQ_CST)) pause();
    ssize_t ignored = write(2, text, sizeof text - 1);
    (void)ignored;
    _exit(NB_INTEGRITY);
}

static void install_signals(void) {
    struct sigaction a = {.sa_handler = on_signal}; /* no SA_RESTART: a read is given up */
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    a.sa_handler = on_bus;
    sigaction(SIGBUS, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
}

static const char cpu_hint[] = "nano-build: hint: nano-build detect, on this machine, names the platform to build for\n";

/* Prints the error and returns the exit code. */
static int report(const char *subject, const struct nb_error *err) {
    if (err->status == NB_BUSY && signal_seen) return 128 + signal_seen;
    char name[128], text[600];
    size_t n = 0;
    for (const char *c = subject; *c && n < sizeof name - 1; c++) name[n++] = *c < 32 || *c > 126 ? '?' : *c;
    name[n] = 0;
    const char *hint = strcmp(err->code, "E_CPU") ? "" : cpu_hint;
    int length = snprintf(text, sizeof text, "nano-build: error[%s]: %s: %s\n%s", err->code, name, err->text, hint);
    ssize_t ignored = write(2, text, (size_t)length);
    (void)ignored;
    return (int)err->status;
}

static enum nb_status write_all(int fd, const void *data, size_t n, const char *what, struct nb_error *err) {
    for (size_t done = 0; done < n;) {
        ssize_t put = write(fd, (const char *)data + done, n - done);
        if (put >= 0) done += (size_t)put;
        else if (errno != EINTR)
            return nb_fail(err, NB_RESOURCE, errno == EPIPE ? "E_PIPE" : "E_OUTPUT", "%s: cannot be written: %s", what,
                           strerror(errno));
    }
    return NB_OK;
}

static enum nb_status show_text(struct run *r, const char *text, size_t n, struct nb_error *err) {
    enum nb_status s = write_all(1, text, n, "standard output", err);
    if (s && !strcmp(err->code, "E_PIPE")) r->reader_gone = 1;
    return s;
}

static enum nb_status read_prompt(const char *path, char **text, size_t *length, struct nb_error *err) {
    int fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : 0;
    if (fd < 0) return nb_fail(err, NB_INPUT, "E_PROMPT_FILE", "cannot be opened: %s", strerror(errno));
    size_t room = LINE_MAX_BYTES, n = 0;
    char *buffer = malloc(room);
    enum nb_status s = buffer ? NB_OK : nb_fail(err, NB_RESOURCE, "E_MEMORY", "no memory for the prompt");
    while (!s) {
        ssize_t got = read(fd, buffer + n, room - n);
        if (got < 0 && errno == EINTR && !signal_seen) continue;
        if (got < 0) s = nb_fail(err, signal_seen ? NB_BUSY : NB_INPUT, "E_PROMPT_FILE", "cannot be read: %s", strerror(errno));
        if (got <= 0) break;
        n += (size_t)got;
        if (n < room) continue;
        char *more = room < FILE_MAX_BYTES ? realloc(buffer, room *= 2) : NULL;
        if (more) buffer = more;
        else s = nb_fail(err, NB_INPUT, "E_PROMPT_TOO_LONG", "more than %d bytes", FILE_MAX_BYTES);
    }
    if (fd) close(fd);
    *text = buffer;
    *length = n;
    return s;
}

static enum nb_status find_model(struct run *r, struct nb_error *err) {
    r->subject = r->model;
    if (r->args.model) {
        if (strlen(r->args.model) >= sizeof r->model) return nb_fail(err, NB_USAGE, "E_USAGE", "--model: path is too long");
        strcpy(r->model, r->args.model);
        return NB_OK;
    }
    ssize_t n = readlink("/proc/self/exe", r->model, sizeof r->model - sizeof "model.nano");
    char *slash = n > 0 ? memrchr(r->model, '/', (size_t)n) : NULL;
    if (!slash) return nb_fail(err, NB_PLATFORM, "E_SELF", "cannot find this program's folder; give --model");
    strcpy(slash + 1, "model.nano");
    return NB_OK;
}

static enum nb_status create(const char *path, int *fd, struct nb_error *err) {
    *fd = -1;
    if (!path) return NB_OK;
    *fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd >= 0 ? NB_OK : nb_fail(err, NB_RESOURCE, "E_OUTPUT", "%.100s: cannot be created: %s", path, strerror(errno));
}

/* Everything that takes memory or opens a file. */
static enum nb_status prepare(struct run *r, struct nb_error *err) {
    enum nb_status s = nb_open(r->model, &r->args.options, &engine, err);
    if (s) return s;
    r->ids = malloc(nb_number(engine, NB_CONTEXT) * sizeof *r->ids);
    if (!r->ids) return nb_fail(err, NB_RESOURCE, "E_MEMORY", "no memory for the prompt");
    if (r->args.chat || r->args.interactive)
        if (!nb_number(engine, NB_HAS_CHAT))
            return nb_fail(err, NB_INPUT, "E_CHAT_NONE", "has no chat mode: its template could not be compiled; use --prompt");
    r->subject = "output";
    s = create(r->args.logits, &r->logits, err);
    if (!s) s = create(r->args.logits_all, &r->logits_all, err);
    r->ready = nb_now();
    const char *debug = getenv("NB_DEBUG");
    if (debug && *debug > '0' && *debug <= '9') {
        char line[160];
        int n = snprintf(line, sizeof line, "# ready %.1f ms  threads %u  isa %s  arena %zuM\n", (r->ready - r->started) * 1e3,
                         (unsigned)nb_number(engine, NB_THREADS), nb_isa(engine), engine->graph.arena_size >> 20);
        s = s ? s : write_all(2, line, (size_t)n, "standard error", err);
    }
    return s;
}

static void write_rows(void *context, uint32_t first, uint32_t count, const float *logits, size_t stride) {
    struct run *r = context;
    struct nb_error err;
    (void)first;
    for (uint32_t i = 0; i < count; i++)
        if (write_all(r->logits_all, logits + i * stride, nb_number(engine, NB_VOCAB) * sizeof *logits, "logits", &err))
            r->reader_gone = 2;
}

/* Text of one turn (or the plain prompt) to tokens, and through the model. */
static enum nb_status feed(struct run *r, const char *text, size_t length, uint32_t turn, struct nb_error *err) {
    size_t n = 0, context = nb_number(engine, NB_CONTEXT);
    enum nb_status s;
    r->subject = r->args.file && !r->args.interactive ? r->args.file : "prompt";
    if (r->args.chat || r->args.interactive) s = nb_chat(engine, turn, r->args.system, text, r->ids, context, &n, err);
    else s = nb_encode(engine, text, length, NB_TOK_BOS, r->ids, context, &n, err);
    if (s == NB_RESOURCE && n > context)
        s = nb_fail(err, NB_INPUT, "E_PROMPT_TOO_LONG", "%zu tokens, the context of %zu has room for %zu", n, context,
                    context - (size_t)nb_number(engine, NB_POSITION));
    if (!s && n == 0) s = nb_fail(err, NB_INPUT, "E_PROMPT_EMPTY", "there is no token to continue from");
    if (s) return s;
    r->prompt_tokens = n;
    double start = nb_now();
    if (r->logits_all >= 0) s = nb_feed_rows(engine, r->ids, n, write_rows, r, err);
    else s = nb_feed(engine, r->ids, n, err);
    r->fed = nb_now() - start;
    return s ? s : r->reader_gone ? nb_fail(err, NB_RESOURCE, "E_OUTPUT", "%s: cannot be written", r->args.logits_all) : NB_OK;
}

/* The text of one step, or its id. */
static enum nb_status show(struct run *r, const struct nb_piece *piece, struct nb_error *err) {
    char number[16];
    if (!r->args.ids) return piece->length ? show_text(r, piece->text, piece->length, err) : NB_OK;
    if (piece->id < 0 || (piece->finish == NB_FINISH_STOP && !engine->stream.stopped)) return NB_OK;
    int n = snprintf(number, sizeof number, r->tokens > 1 ? " %d" : "%d", piece->id);
    return show_text(r, number, (size_t)n, err);
}

static enum nb_status generate(struct run *r, struct nb_error *err) {
    r->subject = "options";
    r->steps = r->tokens = 0;
    r->first = r->ended = 0;
    if (r->args.no_tokens) return NB_OK;
    enum nb_status s = nb_begin(engine, &r->args.generation, err);
    struct nb_piece piece = {0};
    r->subject = "output";
    while (!s && piece.finish == NB_GOING) {
        if (signal_seen) nb_stop(engine);
        uint64_t position = nb_number(engine, NB_POSITION);
        s = nb_next(engine, &piece, err);
        int stepped = nb_number(engine, NB_POSITION) > position;
        r->steps += (uint32_t)stepped;
        r->tokens = engine->generated;
        if (!s && stepped && r->logits_all >= 0) write_rows(r, 0, 1, nb_logits(engine), 0);
        if (!s) s = show(r, &piece, err);
        r->ended = nb_now();
        if (r->first == 0) r->first = r->ended;
    }
    return s ? s : show_text(r, "\n", 1, err);
}

static void report_line(const struct run *r) {
    if (r->args.quiet) return;
    struct rusage usage;
    char line[320];
    getrusage(RUSAGE_SELF, &usage);
    double seconds = r->ended - r->first, speed = r->steps && seconds > 0 ? r->steps / seconds : 0;
    uint32_t crc = nb_crc32c(0, nb_logits(engine), nb_number(engine, NB_VOCAB) * sizeof(float));
    int n = snprintf(line, sizeof line,
                     "# nb %u tok  %.1f tok/s  %.1f ms/tok  %.1f GB/s  rss %ldM  isa %s  logits %08x  ready %.1f ms  prompt %zu "
                     "tok  %.1f tok/s\n",
                     r->tokens, speed, speed > 0 ? 1e3 / speed : 0, speed * (double)nb_number(engine, NB_TOKEN_BYTES) * 1e-9,
                     usage.ru_maxrss >> 10, nb_isa(engine), crc, (r->ready - r->started) * 1e3, r->prompt_tokens,
                     r->fed > 0 ? (double)r->prompt_tokens / r->fed : 0);
    struct nb_error ignored;
    (void)write_all(2, line, (size_t)n, "standard error", &ignored);
}

/* One line of standard input without its end; 0 at the end of input. */
static int read_line(char *line, size_t size, size_t *length) {
    static char buffer[LINE_MAX_BYTES];
    static size_t from, to;
    for (*length = 0; *length < size - 1;) {
        if (from == to) {
            ssize_t got = read(0, buffer, sizeof buffer);
            if (got < 0 && errno == EINTR && !signal_seen) continue;
            if (got <= 0) break;
            from = 0;
            to = (size_t)got;
        }
        char c = buffer[from++];
        if (c == '\n') {
            line[*length] = 0;
            return 1;
        }
        line[(*length)++] = c;
    }
    line[*length] = 0;
    return *length > 0;
}

static enum nb_status converse(struct run *r, const char *first, struct nb_error *err) {
    static char line[LINE_MAX_BYTES];
    const int terminal = isatty(0);
    size_t length = 0;
    for (uint32_t turn = 0; !signal_seen; turn++) {
        const char *text = first ? first : line;
        if (!first) {
            if (terminal && write_all(2, "> ", 2, "standard error", err)) return NB_OK;
            if (!read_line(line, sizeof line, &length)) return NB_OK;
        }
        first = NULL;
        enum nb_status s = feed(r, text, strlen(text), turn, err);
        if (!s) s = generate(r, err);
        if (s) return s;
    }
    return NB_OK;
}

static enum nb_status save_logits(const struct run *r, struct nb_error *err) {
    enum nb_status s = r->logits >= 0 ? write_all(r->logits, nb_logits(engine), nb_number(engine, NB_VOCAB) * sizeof(float),
                                                  r->args.logits, err)
                                      : NB_OK;
    if (!s && r->reader_gone == 2) s = nb_fail(err, NB_RESOURCE, "E_OUTPUT", "%s: cannot be written", r->args.logits_all);
    if (!s && ((r->logits >= 0 && close(r->logits)) || (r->logits_all >= 0 && close(r->logits_all))))
        s = nb_fail(err, NB_RESOURCE, "E_OUTPUT", "cannot be written: %s", strerror(errno));
    return s;
}

static enum nb_status run_text(struct run *r, struct nb_error *err) {
    char *from_file = NULL;
    const char *text = r->args.prompt;
    size_t length = text ? strlen(text) : 0;
    enum nb_status s = NB_OK;
    if (r->args.file) {
        r->subject = r->args.file;
        s = read_prompt(r->args.file, &from_file, &length, err);
        text = from_file;
    }
    if (s) return s;
    if (r->args.file && (r->args.chat || r->args.interactive)) { /* a turn of a chat is a C string */
        if (memchr(text, 0, length)) return nb_fail(err, NB_INPUT, "E_PROMPT_NUL", "holds a zero byte, which a chat cannot");
        from_file[length] = 0; /* read_prompt leaves room */
    }
    r->subject = r->model;
    s = prepare(r, err);
    if (!s && r->args.interactive) s = converse(r, text, err);
    else if (!s) {
        s = feed(r, text, length, 0, err);
        if (!s) s = generate(r, err);
    }
    if (!s || r->reader_gone == 1 || signal_seen) report_line(r);
    if (!s) s = save_logits(r, err);
    return s;
}

static enum nb_status list_kernels(const struct run *r, struct nb_error *err) {
    static struct nb_hal hal;
    char text[4096];
    uint32_t isa;
    enum nb_status s = nb_choose_isa(r->args.options.isa, &isa, err);
    if (s) return s;
    nb_hal_init(&hal, isa);
    (void)nb_kernel_list(&hal, text, sizeof text);
    printf("%-16s %s\n%-16s %s\n%s", "cpu", nb_isa_name(nb_cpu_isa()), "in use", nb_isa_name(hal.isa), text);
    return NB_OK;
}

static enum nb_status on_model(const struct run *r, struct nb_error *err) {
    struct nb_model model;
    const int verify = r->args.action == NB_VERIFY;
    enum nb_status s = nb_model_open(&model, r->model, verify ? NB_MAP_AUTO : NB_MAP_LAZY, err);
    if (s) return s;
    if (verify) s = nb_model_verify(&model, &signal_seen, err);
    if (verify && !s && signal_seen) s = nb_fail(err, NB_BUSY, "E_INTERRUPTED", "interrupted");
    if (verify && !s)
        printf("%s: %u tensors, %zu bytes of weights: all checksums match\n", r->model, model.tensor_count, model.weights.size);
    if (!verify) nb_show(&model, (int)r->args.json, stdout);
    nb_model_close(&model);
    return s;
}

static enum nb_status measure(struct run *r, struct nb_error *err) {
    enum nb_status s = nb_open(r->model, &r->args.options, &engine, err);
    if (s) return s;
    const struct nb_bench_plan plan = {r->args.bench_prefill, r->args.bench_decode, r->args.bench_depth, r->args.reps};
    if (r->args.action == NB_BENCH) s = nb_bench(engine, &plan, stdout, err);
    else if (r->args.action == NB_BENCH_START) s = nb_bench_start(engine, &plan, r->started, stdout, err);
    else nb_bandwidth(engine, plan.reps, stdout);
    return s;
}

static enum nb_status act(struct run *r, struct nb_error *err) {
    switch (r->args.action) {
    case NB_HELP: fputs(nb_help, stdout); return NB_OK;
    case NB_VERSION: puts("nano-build runtime, model format 1"); return NB_OK;
    case NB_KERNELS: r->subject = "options"; return list_kernels(r, err);
    default: break;
    }
    enum nb_status s = find_model(r, err);
    if (s) return s;
    if (r->args.action == NB_SHOW || r->args.action == NB_VERIFY) return on_model(r, err);
    return r->args.action == NB_GENERATE ? run_text(r, err) : measure(r, err);
}

int main(int argc, char **argv) {
    static struct run r = {.logits = -1, .logits_all = -1};
    struct nb_error err = {0};
    r.started = nb_now();
    r.subject = "run";
    enum nb_status s = nb_check_cpu(&err); /* first of all: until here, code is that of the architecture's first CPU */
    if (s) return report(r.subject, &err);
    r.subject = "command line";
    install_signals();
    s = nb_args_parse(&r.args, argc, argv, &err);
    if (!s) s = act(&r, &err);
    if (!s && (fflush(stdout) || ferror(stdout))) s = nb_fail(&err, NB_RESOURCE, "E_OUTPUT", "standard output cannot be written");
    if (s && r.reader_gone == 1) s = NB_OK; /* `| head` took what it wanted */
    int code = s ? report(r.subject, &err) : signal_seen ? 128 + signal_seen : 0;
    nb_close(engine);
    return code;
}
