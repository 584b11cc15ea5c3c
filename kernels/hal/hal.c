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

/* Every level that has a kernel in this program, lowest first. */
static const struct {
    const char *name;
    uint32_t bit;
} levels[] = {
    {"scalar", 0},
#ifdef NB_BUILD_AVX2
    {"avx2", NB_ISA_AVX2},
#endif
#ifdef NB_BUILD_AVX512VNNI
    {"avx512vnni", NB_ISA_AVX512VNNI},
#endif
};
enum { LEVELS = sizeof levels / sizeof *levels };

void nb_hal_init(struct nb_hal *hal, uint32_t isa) {
    memset(hal, 0, sizeof *hal);
    for (size_t i = 0; i < LEVELS; i++) hal->isa |= levels[i].bit & isa;
#define NB_KERNEL(slot, symbol, bits)                                                                                            \
    if ((hal->isa & (bits)) == (bits)) {                                                                                         \
        hal->slot = symbol;                                                                                                      \
        hal->slot##_name = #symbol;                                                                                              \
    }
#include "hal/kernels.def"
#undef NB_KERNEL
    hal->gemv[NB_Q4G16S8] = hal->gemv_q4g16s8;
    hal->gemv[NB_Q4G32S8] = hal->gemv_q4g32s8;
    hal->gemv[NB_Q8G32S8] = hal->gemv_q8g32s8;
    hal->gemm[NB_Q4G16S8] = hal->gemm_q4g16s8;
    hal->gemm[NB_Q4G32S8] = hal->gemm_q4g32s8;
    hal->gemm[NB_Q8G32S8] = hal->gemm_q8g32s8;
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
    *isa = mask;
    return 1;
}
