/* Rows copied from what was read to where they belong. */
#include "core.h"

#include <string.h>

int64_t lt_copy_rows(const unsigned char *from, int64_t size, const int64_t *offsets, int64_t count, int64_t length,
                     unsigned char *into, const int64_t *places, int64_t room) {
    for (int64_t i = 0; i < count; i++) {
        int64_t place = places ? places[i] : i;
        if (offsets[i] < 0 || offsets[i] > size - length || place < 0 || place >= room) return i;
        memcpy(into + place * length, from + offsets[i], (size_t)length);
    }
    return -1;
}
