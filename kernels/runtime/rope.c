/* SPDX-License-Identifier: Apache-2.0
 * The angle is rounded to float once; then everything is double: reduction by pi/2 in two parts, then the classic
 * minimax polynomials on [-pi/4, pi/4] by Horner from the inside. No libm, no fused operations: same bits everywhere. */
#include "runtime/rope.h"

#include <string.h>

static const double sin_poly[6] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03,  -1.98412698298579493134e-04,
                                   2.75573137070700676789e-06,  -2.50507602534068634195e-08, 1.58969099521155010221e-10};
static const double cos_poly[6] = {4.16666666666666019037e-02,  -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                                   -2.75573143513906633035e-07, 2.08757232129817482790e-09,  -1.13596475577881948265e-11};

void nb_rope_row(float *cos, float *sin, uint32_t position, const float *inv_freq, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float rounded = (float)position * inv_freq[i];
        double angle = rounded;
        double shifted = angle * 0.63661977236758134308 + 6755399441055744.0; /* 1.5 * 2^52: rounds to an integer */
        double turns = shifted - 6755399441055744.0;
        double r = (angle - turns * 1.57079632673412561417) - turns * 6.07710050650619224932e-11;
        double z = r * r;
        double ps = sin_poly[5], pc = cos_poly[5];
        for (int k = 4; k >= 0; k--) {
            ps = ps * z + sin_poly[k];
            pc = pc * z + cos_poly[k];
        }
        double s = r + (r * z) * ps;
        double c = (1.0 - 0.5 * z) + (z * z) * pc;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        switch (bits & 3) { /* the quarter turn */
        case 0:
            cos[i] = (float)c;
            sin[i] = (float)s;
            break;
        case 1:
            cos[i] = (float)-s;
            sin[i] = (float)c;
            break;
        case 2:
            cos[i] = (float)-c;
            sin[i] = (float)-s;
            break;
        default:
            cos[i] = (float)s;
            sin[i] = (float)-c;
            break;
        }
    }
}
