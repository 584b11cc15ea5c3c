/* SPDX-License-Identifier: Apache-2.0
 * Between model.c (file, sections, feature record) and model_tensors.c (tensor table, checksums of the weights). */
#ifndef NB_MODEL_INTERNAL_H
#define NB_MODEL_INTERNAL_H

#include <string.h>

#include "runtime/model.h"

static inline uint32_t nb_read_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t nb_read_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float nb_read_f32(const uint8_t *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Checks section TENS against the feature record and takes the views of all tensors. */
enum nb_status nb_model_tensors(struct nb_model *m, struct nb_error *err);
enum nb_status nb_model_checksums(const struct nb_model *m, struct nb_error *err);

#endif
