/* SPDX-License-Identifier: Apache-2.0
 * Where this process's cgroup keeps its limits; both versions of the interface. */
#ifndef NB_CGROUP_H
#define NB_CGROUP_H

#include <stdint.h>

/* Called with folders from our own cgroup up to the root. version is 1 or 2. */
typedef void nb_cgroup_fn(const char *folder, int version, void *context);
/* controller: "cpu" or "memory". */
void nb_cgroup_walk(const char *controller, nb_cgroup_fn *visit, void *context);

/* First line of folder/name without its end, or 0. */
int nb_read_line(const char *folder, const char *name, char *line, int size);

#endif
