/* SPDX-License-Identifier: Apache-2.0
 * Logits to the next token, the same on every machine. The rule, step by step (nanobuild/sampler.py is its twin):
 *
 * 1. Only ids below `tokens` count. NaN counts as minus infinity.
 * 2. repeat != 1: each distinct id among the last repeat_window tokens: v > 0 ? v / repeat : v * repeat.
 * 3. temperature 0: the largest v, the lowest id among equals. Done, the generator is not used.
 * 4. v = v / temperature, at most FLT_MAX. Candidates are ordered by v, largest first, lowest id among equals.
 * 5. top_k > 0: the first top_k of them stay.
 * 6. p = nb_exp(v - first v); those with p < min_p go. weight = floor(p * 2^31); those of weight 0 go. The rest is
 *    integer arithmetic, so that no order of additions can matter.
 * 7. top_p < 1: the shortest run of first candidates whose weights sum to at least (double)total * (double)top_p stays.
 * 8. r = 64 bits from the generator; target = (r * sum of weights) >> 64; the first candidate at which the running sum
 *    of weights exceeds target is the token.
 *
 * Generator: SplitMix64, one draw a token: state += 0x9E3779B97F4A7C15; z = state; z = (z ^ z >> 30) *
 * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; r = z ^ z >> 31. The state starts as the seed. */
#ifndef NB_SAMPLER_H
#define NB_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/error.h"

enum { NB_REPEAT_WINDOW = 64, NB_REPEAT_WINDOW_MAX = 1024 };

struct nb_sampling {
    float temperature; /* 0: greedy; at most 2 */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off */
    float repeat;      /* [0.5, 2]; 1: off */
    uint32_t top_k;    /* 0: off */
    uint32_t repeat_window;
    uint64_t seed;
};

struct nb_candidate {
    float value;
    int32_t id;
    uint32_t weight;
};

struct nb_sampler {
    struct nb_sampling set;
    uint64_t state;
    uint32_t tokens;
    float *values;                   /* (tokens), scratch */
    struct nb_candidate *candidates; /* (tokens), scratch */
};

/* Starts a sequence. NB_USAGE with E_SAMPLING if a setting is out of its range. */
enum nb_status nb_sampler_start(struct nb_sampler *s, const struct nb_sampling *set, struct nb_error *err);
/* history: the sequence so far, the newest last. */
int32_t nb_sample(struct nb_sampler *s, const float *logits, const int32_t *history, size_t length);

#endif
