/* Unpacking LZF: bytes as they are, and copies of what came before.
 *
 * A control byte below 32 is followed by so many bytes and one more. Any other has the length of a copy, less 2, in its
 * upper three bits (7: the next byte is added), and how far back it begins, less 1, in the rest and one more byte. */
#include "lzf.h"

#include <string.h>

#define STEP 32 /* bytes moved at a time where there is room for more than are wanted */

/* A copy that may overlap what it makes: `back` bytes behind `to`. `spare`: bytes that may be written from `to` on. */
static void copy_back(uint8_t *to, int64_t back, int64_t length, int64_t spare) {
    const uint8_t *from = to - back;
    if (back >= STEP && length + STEP <= spare) {
        for (int64_t i = 0; i < length; i += STEP) memcpy(to + i, from + i, STEP);
    } else if (back >= 8 && length + 8 <= spare) {
        for (int64_t i = 0; i < length; i += 8) memcpy(to + i, from + i, 8);
    } else {
        for (int64_t i = 0; i < length; i++) to[i] = from[i];
    }
}

int64_t lt_unpack_lzf(const uint8_t *packed, int64_t count, uint8_t *into, int64_t room) {
    int64_t at = 0, done = 0;
    while (at < count) {
        int64_t control = packed[at++], left = count - at;
        if (control < 32) {
            int64_t length = control + 1;
            if (length > left || length > room - done) return -1;
            if (STEP <= left && STEP <= room - done) memcpy(into + done, packed + at, STEP);
            else memcpy(into + done, packed + at, (size_t)length);
            at += length, done += length;
            continue;
        }
        int64_t length = control >> 5, more = length == 7;
        if (left < 1 + more) return -1;
        if (more) length += packed[at++];
        length += 2;
        int64_t back = ((control & 31) << 8) + packed[at++] + 1;
        if (back > done || length > room - done) return -1;
        copy_back(into + done, back, length, room - done);
        done += length;
    }
    return done;
}
