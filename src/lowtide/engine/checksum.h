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

typedef struct {
    int source;
    uint64_t vocab;
    int64_t skip; /* bytes before the first id */
} lt_ids;

typedef struct {
    int summed;      /* whether `crc` is wanted */
    uint32_t crc;
    int64_t got;     /* bytes: fewer than asked for where the file ends, or on an error */
    int64_t outside; /* the first id outside of the vocabulary, from `skip` on; -1: none */
    int error;       /* errno of a read that failed, or 0 */
} lt_checked;

/* Bytes of a file, read and checked piece by piece while they are in the cache. `ids`: NULL where they are not checked;
 * `to`: as for no bytes. */
void lt_read_checked(lt_checked *to, int fd, int64_t offset, unsigned char *into, int64_t length, const lt_ids *ids);

#endif
