/* Checks of bytes and ids; nothing here knows Python. */
#ifndef LOWTIDE_CHECKSUM_H
#define LOWTIDE_CHECKSUM_H

#include "core.h"

int lt_has_crc32(void); /* whether this processor has what lt_crc32 needs */
uint32_t lt_crc32(uint32_t crc, const void *bytes, int64_t count);

/* The same of the ids as little-endian int64, whatever they are here. */
uint32_t lt_crc32_of_ids(uint32_t crc, int source, const void *ids, int64_t count);

/* The first id that is not from 0 to vocab - 1; -1: none. */
int64_t lt_first_outside(int source, const void *ids, int64_t count, uint64_t vocab);

#endif
