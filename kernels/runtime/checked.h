/* SPDX-License-Identifier: Apache-2.0
 * Size arithmetic that cannot wrap: the only one that readers of untrusted bytes and the arena's plan may use.
 * Functions return 1 if the result is exact and 0 (leaving *out undefined) if it does not fit. */
#ifndef NB_CHECKED_H
#define NB_CHECKED_H

#include <stddef.h>
#include <stdint.h>

static inline int nb_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline int nb_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* Next multiple of `to`, a power of two. */
static inline int nb_align_size(size_t a, size_t to, size_t *out) {
    size_t sum;
    if (!nb_add_size(a, to - 1, &sum)) return 0;
    *out = sum & ~(to - 1);
    return 1;
}

/* 1 if [offset, offset + length) lies inside [0, size). */
static inline int nb_inside(uint64_t offset, uint64_t length, uint64_t size) { return offset <= size && length <= size - offset; }

/* A plan for one block of memory: pieces are laid out one after the other, 64-byte aligned; an overflow sticks. */
struct nb_plan {
    size_t size;
    int bad;
};

/* Offset of a new piece of count * each bytes. */
static inline size_t nb_plan_take(struct nb_plan *plan, size_t count, size_t each) {
    size_t at = plan->size, bytes, end;
    if (!nb_mul_size(count, each, &bytes) || !nb_add_size(at, bytes, &end) || !nb_align_size(end, 64, &plan->size)) plan->bad = 1;
    return at;
}

#endif
