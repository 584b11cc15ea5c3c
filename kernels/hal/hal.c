/* SPDX-License-Identifier: Apache-2.0
 * The dispatcher: kernels.def read three times, once for the prototypes, once to fill the table and once for the
 * levels that are built in. It knows names only; what a kernel does is written in hal.h. */
#include "hal/hal.h"

#include <string.h>

#define NB_SLOT(type, name) typedef type nb_slot_##name;
#include "hal/slots.def"
#undef NB_SLOT

#define NB_KERNEL(slot, symbol, bits) nb_slot_##slot symbol;
#include "hal/kernels.def"
#undef NB_KERNEL

const struct nb_format_row nb_format_rows[NB_FORMATS] = {
#define NB_FORMAT(number, NAME, name, bits, group) [NB_##NAME] = {#name, bits, group},
#include "hal/formats.def"
#undef NB_FORMAT
};

/* Every level that has a kernel in this program, lowest first. */
static const struct {
    const char *name;
    uint32_t bit;
} levels[] = {
    {"scalar", 0},
#define NB_LEVEL(name, bit) {#name, bit},
#include "hal/levels.def"
#undef NB_LEVEL
};
enum { LEVELS = sizeof levels / sizeof *levels };

uint32_t nb_isa_floor(void) { return NB_FLOOR; }

void nb_hal_init(struct nb_hal *hal, uint32_t isa) {
    memset(hal, 0, sizeof *hal);
    for (size_t i = 0; i < LEVELS; i++) hal->isa |= levels[i].bit & (isa | NB_FLOOR);
/* The first half is a constant: what the floor overrides is never stored, and the linker drops the kernel. */
#define NB_KERNEL(slot, symbol, bits)                                                                                            \
    if ((NB_FLOOR & (bits)) == (bits) || (hal->isa & (bits)) == (bits)) {                                                        \
        hal->slot = symbol;                                                                                                      \
        hal->slot##_name = #symbol;                                                                                              \
    }
#include "hal/kernels.def"
#undef NB_KERNEL
#define NB_FORMAT(number, NAME, name, bits, group)                                                                               \
    hal->gemv[number] = hal->gemv_##name;                                                                                        \
    hal->gemm[number] = hal->gemm_##name;
#include "hal/formats.def"
#undef NB_FORMAT
}

const char *nb_isa_name(uint32_t isa) {
    const char *name = levels[0].name;
    for (size_t i = 1; i < LEVELS; i++)
        if (isa & levels[i].bit) name = levels[i].name;
    return name;
}

int nb_isa_parse(const char *text, uint32_t *isa) {
    uint32_t mask = 0;
    for (;;) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < LEVELS && (strlen(levels[i].name) != length || memcmp(levels[i].name, text, length) != 0)) i++;
        if (i == LEVELS) return 0;
        mask |= levels[i].bit;
        if (text[length] == 0) break;
        text += length + 1;
    }
    if (NB_FLOOR && mask <= NB_FLOOR / 2) return 0; /* names no level as high as the floor's highest */
    *isa = mask | NB_FLOOR;
    return 1;
}
