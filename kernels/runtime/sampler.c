/* SPDX-License-Identifier: Apache-2.0
 * Sampling without sorting the vocabulary: a heap gives the candidates in order, and only as many as are needed. */
#include "runtime/sampler.h"

#include <float.h>
#include <math.h>

#include "ops/scalar/math.h"

enum nb_status nb_sampler_start(struct nb_sampler *s, const struct nb_sampling *set, struct nb_error *err) {
    if (!(set->temperature >= 0 && set->temperature <= 2))
        return nb_fail(err, NB_USAGE, "E_SAMPLING", "temperature %g, allowed are 0 to 2", (double)set->temperature);
    if (!(set->top_p > 0 && set->top_p <= 1))
        return nb_fail(err, NB_USAGE, "E_SAMPLING", "top-p %g, allowed is more than 0 up to 1", (double)set->top_p);
    if (!(set->min_p >= 0 && set->min_p <= 1))
        return nb_fail(err, NB_USAGE, "E_SAMPLING", "min-p %g, allowed are 0 to 1", (double)set->min_p);
    if (!(set->repeat >= 0.5f && set->repeat <= 2))
        return nb_fail(err, NB_USAGE, "E_SAMPLING", "repeat penalty %g, allowed are 0.5 to 2", (double)set->repeat);
    if (set->repeat_window > NB_REPEAT_WINDOW_MAX)
        return nb_fail(err, NB_USAGE, "E_SAMPLING", "repeat window %u, allowed are 0 to %d", set->repeat_window,
                       NB_REPEAT_WINDOW_MAX);
    s->set = *set;
    s->state = set->seed;
    return NB_OK;
}

static uint64_t draw(struct nb_sampler *s) {
    s->state += 0x9E3779B97F4A7C15u;
    uint64_t z = s->state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* (a * b) >> 64 without a 128-bit type, which 32-bit machines lack */
static uint64_t multiply_high(uint64_t a, uint64_t b) {
    const uint64_t al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
    const uint64_t low = al * bl, mid = ah * bl + (low >> 32), mid2 = al * bh + (mid & 0xffffffffu);
    return ah * bh + (mid >> 32) + (mid2 >> 32);
}

static void penalize(struct nb_sampler *s, const int32_t *history, size_t length) {
    size_t first = length > s->set.repeat_window ? length - s->set.repeat_window : 0;
    for (size_t i = first; i < length; i++) {
        size_t seen = first;
        while (history[seen] != history[i]) seen++;
        if (seen < i || (uint32_t)history[i] >= s->tokens) continue;
        float *v = &s->values[history[i]];
        *v = *v > 0 ? *v / s->set.repeat : *v * s->set.repeat;
    }
}

/* The largest of n values, by lanes that compilers keep in vector registers; NaN is no value. */
static float top_of(const float *v, uint32_t n) {
    enum { LANES = 16 };
    float lane[LANES], top = -INFINITY;
    uint32_t i = 0;
    for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] = v[i + (uint32_t)j] > lane[j] ? v[i + (uint32_t)j] : lane[j];
    for (int j = 0; j < LANES; j++) top = lane[j] > top ? lane[j] : top;
    for (; i < n; i++) top = v[i] > top ? v[i] : top;
    return top;
}

/* The first of the largest, or 0: the best run of values, then where in it. */
static int32_t largest(const float *v, uint32_t n) {
    enum { RUN = 1024 };
    float best = -INFINITY;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i += RUN) {
        const float top = top_of(v + i, n - i < RUN ? n - i : RUN);
        if (top > best) {
            best = top;
            at = i;
        }
    }
    while (best > -INFINITY && !(v[at] == best)) at++;
    return (int32_t)at;
}

static int before(const struct nb_candidate *a, const struct nb_candidate *b) {
    return a->value > b->value || (a->value == b->value && a->id < b->id);
}

/* Restores a heap below place i. sign 1: the first in order on top; -1: the last. */
static void sift(struct nb_candidate *c, size_t n, size_t i, int sign) {
    struct nb_candidate moved = c[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&c[child + 1], &c[child]) == (sign > 0)) child++;
        if (before(&c[child], &moved) != (sign > 0)) break;
        c[i] = c[child];
    }
    c[i] = moved;
}

static void heapify(struct nb_candidate *c, size_t n, int sign) {
    for (size_t i = n / 2; i-- > 0;) sift(c, n, i, sign);
}

/* The k first of all candidates, in any order: a heap with the last of them on top. */
static size_t first_k(struct nb_sampler *s, size_t k) {
    struct nb_candidate *c = s->candidates;
    for (size_t i = 0; i < k; i++) c[i] = (struct nb_candidate){.value = s->values[i], .id = (int32_t)i};
    heapify(c, k, -1);
    for (size_t i = k; i < s->tokens; i++) {
        if (!(s->values[i] > c[0].value)) continue; /* equal values: the lower id is in already */
        c[0] = (struct nb_candidate){.value = s->values[i], .id = (int32_t)i};
        sift(c, k, 0, -1);
    }
    return k;
}

/* Steps 5 and 6: fills candidates with their weights, returns how many. */
static size_t collect(struct nb_sampler *s, float top, uint64_t *total) {
    struct nb_candidate *c = s->candidates;
    size_t n = s->set.top_k && s->set.top_k < s->tokens ? first_k(s, s->set.top_k) : 0, kept = 0;
    const int all = n == 0;
    if (all) n = s->tokens;
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        struct nb_candidate one = all ? (struct nb_candidate){.value = s->values[i], .id = (int32_t)i} : c[i];
        const float below = one.value - top;
        if (!(below > -22.0f)) continue; /* e^-22 * 2^31 < 1 */
        const float p = nb_exp(below);
        one.weight = (uint32_t)(p * 2147483648.0f);
        if (p < s->set.min_p || one.weight == 0) continue;
        c[kept++] = one;
        *total += one.weight;
    }
    return kept;
}

/* Steps 7 and 8. Candidates that were taken from the heap lie behind it, the first of them last. */
static int32_t pick(struct nb_sampler *s, size_t n, uint64_t total) {
    struct nb_candidate *c = s->candidates;
    const uint64_t enough = s->set.top_p < 1 ? (uint64_t)((double)total * (double)s->set.top_p) : total;
    const uint64_t random = draw(s);
    uint64_t target = multiply_high(random, total), sum = 0;
    int known = enough == total; /* all stay: the target is known before any candidate is */
    heapify(c, n, 1);
    for (size_t left = n; left > 0;) {
        struct nb_candidate taken = c[0];
        c[0] = c[--left];
        sift(c, left, 0, 1);
        c[left] = taken;
        sum += taken.weight;
        if (known && sum > target) return taken.id;
        if (known || sum < enough) continue;
        target = multiply_high(random, sum);
        sum = 0;
        for (size_t i = n; i-- > left;) {
            sum += c[i].weight;
            if (sum > target) return c[i].id;
        }
    }
    return c[0].id;
}

int32_t nb_sample(struct nb_sampler *s, const float *logits, const int32_t *history, size_t length) {
    const int greedy = s->set.temperature == 0, penalty = s->set.repeat != 1;
    if (greedy && !penalty) return largest(logits, s->tokens);
    for (uint32_t i = 0; i < s->tokens; i++) s->values[i] = logits[i] == logits[i] ? logits[i] : -INFINITY;
    if (penalty) penalize(s, history, length);
    if (greedy) return largest(s->values, s->tokens);
    float top = -INFINITY;
    for (uint32_t i = 0; i < s->tokens; i++) {
        float v = s->values[i] / s->set.temperature;
        s->values[i] = v = v < FLT_MAX ? v : FLT_MAX;
        top = v > top ? v : top;
    }
    if (top == -INFINITY) return 0;
    uint64_t total;
    size_t n = collect(s, top, &total);
    return pick(s, n, total);
}
