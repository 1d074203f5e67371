/* Mappings that the core makes itself, because Python's mmap takes no address.
 *
 * The page cache holds files in folios of up to 2 MiB. Where address and offset agree modulo 2 MiB, one fault maps a
 * whole folio of that size, and random rows soon map far more than was read. One page beside such a boundary the
 * largest folios do not fit a page table and stay unmapped but for the kernel's window around the fault (64 KiB); since
 * Linux 6.18 smaller ones that fit are still mapped whole, so that a fault may map anything below 2 MiB. */
#include "core.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#define PAGE 4096
#define LARGE (2 << 20)

int lt_map(lt_mapping *to, int fd, int64_t size, int shifted, int scattered) {
    size_t bytes = (size_t)(size + PAGE - 1) / PAGE * PAGE, all = bytes + 2 * LARGE;
    unsigned char *reserved = NULL, *at = NULL;
    *to = (lt_mapping){NULL, 0};
    if (size < 1) return EINVAL;
    if (size > INT64_MAX - 4 * LARGE) return ENOMEM;
    if (shifted) {
        reserved = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED) return errno;
        at = (unsigned char *)(((uintptr_t)reserved + LARGE - 1) / LARGE * LARGE) + PAGE;
    }
    unsigned char *found = mmap(at, (size_t)size, PROT_READ, MAP_SHARED | (shifted ? MAP_FIXED : 0), fd, 0);
    if (found == MAP_FAILED) {
        int error = errno;
        if (shifted) munmap(reserved, all);
        return error;
    }
    if (shifted) {
        munmap(reserved, (size_t)(at - reserved));
        munmap(at + bytes, (size_t)(reserved + all - (at + bytes)));
    }
    madvise(found, (size_t)size, MADV_DONTDUMP);
    if (scattered) madvise(found, (size_t)size, MADV_RANDOM);
    *to = (lt_mapping){found, size};
    return 0;
}

/* Whole page tables: whatever faults mapped around these bytes lies in them. Not the whole mapping: the kernel would walk
 * every table that was ever touched, and of a file of terabytes there are thousands. */
int lt_take_back(const lt_mapping *mapping, int64_t first, int64_t length) {
    uintptr_t base = (uintptr_t)mapping->at, start = (base + (uintptr_t)first) / LARGE * LARGE;
    uintptr_t end = (base + (uintptr_t)(first + length) + LARGE - 1) / LARGE * LARGE, last = base + (uintptr_t)mapping->size;
    if (start < base) start = base;
    if (end > last) end = last;
    return end <= start || madvise((void *)start, end - start, MADV_DONTNEED) == 0 ? 0 : errno;
}

void lt_unmap(lt_mapping *mapping) {
    if (mapping->at) munmap(mapping->at, (size_t)mapping->size);
    *mapping = (lt_mapping){NULL, 0};
}
