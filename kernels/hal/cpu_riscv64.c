/* SPDX-License-Identifier: Apache-2.0
 * Which levels this 64-bit RISC-V processor and its kernel allow: the vector extension 1.0 with VLEN of 128 or more.
 * Compiled for rv64gc, and no vector instruction runs where the kernel reports no V. */
#include "hal/hal.h"

#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Numbers of the kernel's interface, written out because the C library's headers may be older than they are. */
enum { SYS_HWPROBE = 258, KEY_IMA_EXT_0 = 4, IMA_V = 1 << 2, HWCAP_V = 1 << ('v' - 'a') };
enum { GET_VECTOR_CONTROL = 70, VECTOR_STATE = 3, VECTOR_OFF = 1 };

static int kernel_has_vector(void) {
    struct {
        int64_t key;
        uint64_t value;
    } pair = {KEY_IMA_EXT_0, 0};
    /* Linux 6.5 can keep vectors from a process, whatever the processor has; older ones know no such call. */
    const int control = prctl(GET_VECTOR_CONTROL, 0ul, 0ul, 0ul, 0ul);
    if (control >= 0 && (control & VECTOR_STATE) == VECTOR_OFF) return 0;
    if (syscall(SYS_HWPROBE, &pair, (size_t)1, (size_t)0, NULL, 0u) == 0 && pair.key == KEY_IMA_EXT_0)
        return (pair.value & IMA_V) != 0;
    return (getauxval(AT_HWCAP) & HWCAP_V) != 0; /* before Linux 6.4 */
}

/* VLEN / 8 on version 1.0, 0 on 0.7.1 (T-Head C906 and C910: Allwinner D1, TH1520, SG2042), whose vendor kernels report V
 * as well. The vtype 0xC0 (e8, m1, tail and mask agnostic) has a bit that 0.7.1 reserves: there it makes vl 0 and does not
 * trap. As a word, vsetvli t0, zero, 0xC0, because the assembler refuses it for rv64gc. */
static unsigned long vector_bytes(void) {
    unsigned long vl;
    __asm__ volatile(".4byte 0x0c0072d7\n\tmv %0, t0" : "=r"(vl) : : "t0");
    return vl;
}

uint32_t nb_cpu_isa(void) { return kernel_has_vector() && vector_bytes() >= 16 ? NB_ISA_RVV : 0u; }
