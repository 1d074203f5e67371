/* LZF, as h5py's filter packs chunks of HDF5. Knows nothing of Python. */
#ifndef LOWTIDE_LZF_H
#define LOWTIDE_LZF_H

#include <stdint.h>

/* Unpack `count` bytes into `room`; how many came, or -1: damaged, or longer than the room. Whatever the bytes say,
 * nothing outside of the two is read or written. */
int64_t lt_unpack_lzf(const uint8_t *packed, int64_t count, uint8_t *into, int64_t room);

#endif
