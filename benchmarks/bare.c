/* The bare C loops that are the limit: one system call per run and nothing around it. No errors, no signals, no
 * vocabulary, no queue; every batch lands in the same buffers, as a training loop's does. Built by native_engine.py
 * with the flags of the extension, with registers of 256 bits where there are any, as ours. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef uint16_t __attribute__((aligned(1), may_alias)) token;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
#define INLINE static inline __attribute__((always_inline)) /* into loops that are built for both */

INLINE void widen(const token *restrict from, int64_t length, int64_t *restrict x, int64_t *restrict y) {
    for (int64_t i = 0; i < length; i++) {
        x[i] = from[i];
        y[i] = from[i + 1];
    }
}

/* Windows of length + 1 uint16 tokens to int64 x and y. Returns the bytes that came. */
WIDE int64_t bare_windows(int fd, const int64_t *offsets, int64_t batches, int64_t batch, int64_t length, int64_t *x, int64_t *y, void *scratch) {
    int64_t came = 0;
    for (int64_t i = 0; i < batches * batch; i++) {
        came += pread(fd, scratch, (size_t)(length + 1) * 2, offsets[i]);
        widen(scratch, length, x + i % batch * length, y + i % batch * length);
    }
    return came;
}

WIDE int64_t bare_windows_mapped(const unsigned char *base, const int64_t *offsets, int64_t batches, int64_t batch, int64_t length, int64_t *x, int64_t *y) {
    for (int64_t i = 0; i < batches * batch; i++) {
        widen((const token *)(base + offsets[i]), length, x + i % batch * length, y + i % batch * length);
    }
    return batches * batch * (length + 1) * 2;
}

/* The same, which asks for cache lines four windows ahead, as ours does: a plain loop waits for memory at the beginning of
 * each. */
WIDE int64_t bare_windows_fetched(const unsigned char *base, const int64_t *offsets, int64_t batches, int64_t batch, int64_t length, int64_t *x, int64_t *y) {
    for (int64_t i = 0; i < batches * batch; i++) {
        const unsigned char *later = base + offsets[i + 4 < batches * batch ? i + 4 : i];
        for (int64_t at = 0; at < (length + 1) * 2; at += 64) __builtin_prefetch(later + at);
        widen((const token *)(base + offsets[i]), length, x + i % batch * length, y + i % batch * length);
    }
    return batches * batch * (length + 1) * 2;
}

int64_t bare_rows(int fd, const int64_t *offsets, int64_t batches, int64_t batch, int64_t bytes, unsigned char *into) {
    int64_t came = 0;
    for (int64_t i = 0; i < batches * batch; i++) came += pread(fd, into + i % batch * bytes, (size_t)bytes, offsets[i]);
    return came;
}

/* Runs of a file, one behind the other, into a buffer that is begun anew when it is full; from a mapping, if there is one. */
int64_t bare_runs(int fd, const unsigned char *base, const int64_t *offsets, const int64_t *lengths, int64_t runs, unsigned char *into, int64_t room) {
    int64_t came = 0, at = 0;
    for (int64_t i = 0; i < runs; i++) {
        if (at + lengths[i] > room) at = 0;
        if (base) memcpy(into + at, base + offsets[i], (size_t)lengths[i]);
        came += base ? lengths[i] : pread(fd, into + at, (size_t)lengths[i], offsets[i]);
        at += lengths[i];
    }
    return came;
}

typedef uint16_t sixteen __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint64_t four __attribute__((vector_size(32)));
#define GROUP 4 /* of sixteen tokens, looked at together: most have no end of a document */

#define ANY(found) ((found)[0] | (found)[1] | (found)[2] | (found)[3])

/* `length` is a multiple of 64. */
INLINE int64_t ends_of(const token *row, int64_t length, uint16_t id, int32_t *ends) {
    const sixteen wanted = (sixteen){0} + id;
    int64_t count = 0;
    for (int64_t at = 0; at < length; at += 16 * GROUP) {
        const sixteen *here = (const sixteen *)(row + at);
        const four found[GROUP] = {(four)(here[0] == wanted), (four)(here[1] == wanted), (four)(here[2] == wanted), (four)(here[3] == wanted)};
        const four all = found[0] | found[1] | found[2] | found[3];
        if (!ANY(all)) continue;
        for (int64_t i = 0; i < 16 * GROUP; i++) {
            if (i % 16 == 0 && !ANY(found[i / 16])) i += 15;
            else if (row[at + i] == id) ends[count++] = (int32_t)(at + i);
        }
    }
    return count;
}

#define STEP 16 /* tokens written together: what is too much belongs to the next run, and planes have room for a step more */

INLINE void write_run(int32_t *positions, int32_t *ids, uint8_t *mask, int32_t id, int32_t size) {
    for (int32_t at = 0; at < size; at += STEP) {
        for (int32_t i = 0; i < STEP; i++) positions[at + i] = at + i;
        for (int32_t i = 0; i < STEP; i++) ids[at + i] = id;
        memset(mask + at, 1, STEP);
    }
}

typedef struct {
    int64_t *x, *y;
    int32_t *positions, *ids, *ends, *bounds; /* ends: room for every token */
    uint8_t *mask, *scratch;
} targets;

/* Windows whose documents end with `id`: their planes when the batch is there, which was faster than row by row. */
WIDE int64_t bare_documents(int fd, const int64_t *offsets, int64_t batches, int64_t batch, int64_t length, int64_t id, const targets *to) {
    int64_t came = 0, counts[batch];
    for (int64_t b = 0; b < batches; b++) {
        int32_t *ends = to->ends, number = 0;
        for (int64_t row = 0; row < batch; row++) {
            came += pread(fd, to->scratch, (size_t)(length + 1) * 2, offsets[b * batch + row]);
            widen((const token *)to->scratch, length, to->x + row * length, to->y + row * length);
            ends += counts[row] = ends_of((const token *)to->scratch, length, (uint16_t)id, ends);
        }
        ends = to->ends;
        for (int64_t row = 0; row < batch; row++) {
            int64_t base = row * length, first = 0;
            for (int64_t i = 0; i <= counts[row]; i++) {
                int64_t last = i < counts[row] ? ends[i] + 1 : length;
                if (last == first) continue;
                write_run(to->positions + base + first, to->ids + base + first, to->mask + base + first, number, (int32_t)(last - first));
                to->bounds[number++] = (int32_t)(base + first);
                if (i < counts[row]) to->mask[base + last - 1] = 0;
                first = last;
            }
            ends += counts[row];
        }
    }
    return came;
}

/* Rows of length + 1 tokens, each made of counts[row] pieces: read one after the other, then widened. */
WIDE int64_t bare_packed(int fd, const int64_t *offsets, const int64_t *lengths, const int64_t *counts, int64_t rows, int64_t batch, int64_t length, const targets *to) {
    int64_t came = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = 0;
        for (int64_t i = 0; i < counts[row]; i++, offsets++, lengths++) at += pread(fd, to->scratch + at, (size_t)*lengths, *offsets);
        widen((const token *)to->scratch, length, to->x + row % batch * length, to->y + row % batch * length);
        came += at;
    }
    return came;
}
