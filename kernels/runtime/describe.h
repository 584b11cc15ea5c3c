/* SPDX-License-Identifier: Apache-2.0
 * What is in a model and in an engine, as text and JSON. */
#ifndef NB_DESCRIBE_H
#define NB_DESCRIBE_H

#include <stdio.h>

#include "runtime/model.h"

/* A growing text in a fixed buffer: counts on when it is full, as snprintf does. */
struct nb_text {
    char *out;
    size_t size, length;
};
void nb_text_add(struct nb_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As a JSON string with its quotes; bytes outside printable ASCII are escaped one by one. */
void nb_text_json(struct nb_text *t, const char *bytes, size_t n);

/* Feature record, sections and tensors of a model. */
void nb_show(const struct nb_model *m, int json, FILE *to);

#endif
