/* SPDX-License-Identifier: Apache-2.0
 * /proc/self/cgroup names our folder; inside a container only its parents may be visible, so all are tried. */
#include "runtime/cgroup.h"

#include <stdio.h>
#include <string.h>

int nb_read_line(const char *folder, const char *name, char *line, int size) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    int ok = fgets(line, size, f) != NULL;
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

void nb_cgroup_walk(const char *controller, nb_cgroup_fn *visit, void *context) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    char line[1024], folder[1100];
    while (fgets(line, sizeof line, f)) { /* number:controllers:path */
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        int version = controllers[1] == 0 ? 2 : 1;
        if (version == 1 && !strstr(controllers, controller)) continue;
        for (char *cut = path + strlen(path); cut; cut = strrchr(path, '/')) {
            *cut = 0;
            if (version == 2) snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", path);
            else snprintf(folder, sizeof folder, "/sys/fs/cgroup/%s%s", controller, path);
            visit(folder, version, context);
        }
    }
    fclose(f);
}
