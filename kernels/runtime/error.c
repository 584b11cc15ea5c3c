/* SPDX-License-Identifier: Apache-2.0
 * The one place where an error text is put together. Whatever comes out is one line of printable ASCII. */
#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>

enum nb_status nb_fail(struct nb_error *err, enum nb_status status, const char *code, const char *format, ...) {
    if (!err) return status;
    err->status = status;
    snprintf(err->code, sizeof err->code, "%s", code);
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    for (char *c = err->text; *c; c++)
        if (*c < 32 || *c > 126) *c = '?';
    return status;
}
