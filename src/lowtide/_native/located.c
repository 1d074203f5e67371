/* Runs of a corpus of many files: which file each lies in, where, and whether those files still are what was opened. */
#include "core.h"

#include <stdlib.h>
#include <sys/stat.h>

static int is_same(const lt_files *files, int64_t file) {
    struct stat found;
    if (files->fds[file] < 0 || fstat(files->fds[file], &found) != 0 || found.st_nlink == 0) return 0;
    int64_t modified = found.st_mtim.tv_sec * INT64_C(1000000000) + found.st_mtim.tv_nsec;
    return found.st_size == files->sizes[file] && modified == files->modified[file];
}

/* The first file that ends behind the logical byte; empty files are passed over. */
static int64_t file_of(const lt_files *files, int64_t offset) {
    int64_t low = 0, high = files->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (files->ends[middle] <= offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

int lt_locate(const lt_files *files, const int64_t *numbers, int64_t count, int64_t stride, const int64_t *lengths,
              int one_length, int32_t *fds, int64_t *offsets) {
    unsigned char *seen = calloc((size_t)files->count + 1, 1);
    int fine = seen != NULL;
    for (int64_t run = 0; fine && run < count; run++) {
        int64_t offset, file, length = lengths[one_length ? 0 : run];
        fine = !__builtin_mul_overflow(numbers[run], stride, &offset) && offset >= 0;
        if (!fine) break;
        file = file_of(files, offset);
        fine = file < files->count && length >= 0 && length <= files->ends[file] - offset && (seen[file] || is_same(files, file));
        if (!fine) break;
        seen[file] = 1;
        fds[run] = files->fds[file], offsets[run] = offset + files->shift[file];
    }
    free(seen);
    return fine;
}
