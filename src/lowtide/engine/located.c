/* Runs of many files: which one each lies in, where, and whether those files still are what was opened. */
#include "core.h"

#include <stdlib.h>
#include <sys/stat.h>

static int is_same(const lt_files *files, int64_t file, int look) {
    struct stat found;
    if (files->fds[file] < 0 || !look) return files->fds[file] >= 0;
    if (fstat(files->fds[file], &found) != 0 || found.st_nlink == 0) return 0;
    int64_t changed = found.st_ctim.tv_sec * INT64_C(1000000000) + found.st_ctim.tv_nsec;
    return found.st_size == files->sizes[file] && changed == files->changed[file];
}

/* The first extent that ends behind the logical byte; empty ones are passed over. */
static int64_t extent_of(const lt_files *files, int64_t offset) {
    int64_t low = 0, high = files->extents;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (files->ends[middle] <= offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

int lt_locate(const lt_files *files, const int64_t *numbers, int64_t count, int64_t stride, const int64_t *lengths,
              int one_length, int32_t *fds, int64_t *offsets, int look) {
    uint64_t few[64] = {0}, *seen = few; /* a bit per file that was looked at: each is asked about once */
    if (files->count > 64 * 64) seen = calloc((size_t)files->count / 64 + 1, 8);
    int fine = seen != NULL;
    for (int64_t run = 0; fine && run < count; run++) {
        int64_t offset, length = lengths[one_length ? 0 : run];
        fine = 0;
        if (__builtin_mul_overflow(numbers[run], stride, &offset) || offset < 0) break;
        int64_t extent = extent_of(files, offset);
        if (extent >= files->extents || length < 0 || length > files->ends[extent] - offset) break;
        int32_t file = files->which[extent];
        if (file < 0 || file >= files->count) break;
        uint64_t bit = UINT64_C(1) << (file & 63);
        if (!(seen[file / 64] & bit) && !is_same(files, file, look)) break;
        seen[file / 64] |= bit;
        fds[run] = files->fds[file], offsets[run] = offset + files->shift[extent];
        fine = 1;
    }
    if (seen != few) free(seen);
    return fine;
}
