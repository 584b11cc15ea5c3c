/* SPDX-License-Identifier: Apache-2.0
 * The program's command line. */
#ifndef NB_ARGS_H
#define NB_ARGS_H

#include "runtime/nb.h"

enum nb_action { NB_GENERATE, NB_HELP, NB_VERSION, NB_SHOW, NB_VERIFY, NB_KERNELS, NB_BENCH, NB_BENCH_START, NB_BANDWIDTH };

struct nb_args {
    enum nb_action action;
    struct nb_options options;
    struct nb_generation generation;
    const char *model, *prompt, *file, *system, *logits, *logits_all;
    uint32_t no_tokens; /* -n 0: only the prompt */
    uint32_t chat, interactive, ids, json, quiet;
    uint32_t bench_prefill, bench_decode, bench_depth, reps;
};

/* NB_USAGE with E_USAGE; the text says which flag. */
enum nb_status nb_args_parse(struct nb_args *a, int argc, char **argv, struct nb_error *err);
extern const char nb_help[];

#endif
