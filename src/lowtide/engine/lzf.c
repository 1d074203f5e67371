/* Unpacking LZF: bytes as they are, and copies of what came before.
 *
 * A control byte below 32 is followed by so many bytes and one more. Any other has the length of a copy, less 2, in its
 * upper three bits (7: the next byte is added), and how far back it begins, less 1, in the rest and one more byte. */
#include "lzf.h"

#include <string.h>

#define STEP 32 /* bytes moved at a time where there is room for more than are wanted */
#define LITTLE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

/* A copy from 1 to 7 bytes back repeats itself: by how far back, those bytes of a word, what repeats them all over it,
 * and the bytes that are whole repetitions. From 8 back on, the word as it is. */
static const uint64_t KEPT[] = {
    0, 0xff, 0xffff, 0xffffff, 0xffffffff, 0xffffffffff, 0xffffffffffff, 0xffffffffffffff, 0xffffffffffffffff,
};
static const uint64_t TIMES[] = {
    0, 0x101010101010101, 0x1000100010001, 0x1000001000001, 0x100000001, 1ull << 40 | 1, 1ull << 48 | 1, 1ull << 56 | 1, 1,
};
static const int64_t WHOLE[] = {8, 8, 8, 6, 8, 5, 6, 7, 8};

/* A copy that may overlap what it makes: `back` bytes behind `to`. `spare`: bytes that may be written from `to` on.
 * Most are short, from anywhere: no branch asks how far back, because none would be foreseen. */
static void copy_back(uint8_t *to, int64_t back, int64_t length, int64_t spare) {
    const uint8_t *from = to - back;
    if (length > 8 && back >= STEP && length + STEP <= spare) {
        for (int64_t i = 0; i < length; i += STEP) memcpy(to + i, from + i, STEP);
    } else if (LITTLE && length + 8 <= spare) {
        int64_t period = back < 8 ? back : 8;
        for (int64_t i = 0; i < length; i += WHOLE[period]) {
            uint64_t word;
            memcpy(&word, from + i, sizeof word);
            word = (word & KEPT[period]) * TIMES[period];
            memcpy(to + i, &word, sizeof word);
        }
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
