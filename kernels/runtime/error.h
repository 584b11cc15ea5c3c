/* SPDX-License-Identifier: Apache-2.0
 * One way to fail: functions return a status and fill the caller's nb_error. Only main.c prints and exits;
 * the status is the exit code. */
#ifndef NB_ERROR_H
#define NB_ERROR_H

enum nb_status { NB_OK = 0, NB_USAGE = 2, NB_INPUT = 3, NB_INTEGRITY = 4, NB_RESOURCE = 5, NB_PLATFORM = 6, NB_BUSY = 7 };

struct nb_error {
    enum nb_status status;
    char code[32];  /* E_MODEL_SHORT ... */
    char text[320]; /* one line, printable ASCII */
};

/* Fills *err (which may be NULL) and returns status. Bytes outside printable ASCII become '?'. */
enum nb_status nb_fail(struct nb_error *err, enum nb_status status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
