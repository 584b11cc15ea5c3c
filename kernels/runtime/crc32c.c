/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C with eight tables of 256 words (slicing by 8): table[k][b] is the effect of byte b that is followed by k
 * zero bytes, so eight input bytes are eight look-ups that do not wait for each other. */
#include "runtime/crc32c.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int bit = 0; bit < 8; bit++) c = (c >> 1) ^ (0x82F63B78u & (0u - (c & 1u)));
        table[0][b] = c;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++) table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 255u];
}

uint32_t nb_crc32c(uint32_t crc, const void *data, size_t n) {
    pthread_once(&once, fill);
    const uint8_t *p = data;
    uint32_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= c;
        c = table[7][lo & 255] ^ table[6][(lo >> 8) & 255] ^ table[5][(lo >> 16) & 255] ^ table[4][lo >> 24] ^
            table[3][hi & 255] ^ table[2][(hi >> 8) & 255] ^ table[1][(hi >> 16) & 255] ^ table[0][hi >> 24];
    }
    for (; n; n--, p++) c = (c >> 8) ^ table[0][(c ^ *p) & 255];
    return ~c;
}
