/* The bare C loops that are the limit: one system call per run and nothing around it. No errors, no signals, no
 * vocabulary, no queue; every batch lands in the same buffers, as a training loop's does. Built by native_engine.py
 * with the flags of the extension. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef uint16_t __attribute__((aligned(1), may_alias)) token;

static void widen(const token *restrict from, int64_t length, int64_t *restrict x, int64_t *restrict y) {
    for (int64_t i = 0; i < length; i++) {
        x[i] = from[i];
        y[i] = from[i + 1];
    }
}

/* Windows of length + 1 uint16 tokens to int64 x and y. Returns the bytes that came. */
int64_t bare_windows(int fd, const int64_t *offsets, int64_t batches, int64_t batch, int64_t length, int64_t *x, int64_t *y, void *scratch) {
    int64_t came = 0;
    for (int64_t i = 0; i < batches * batch; i++) {
        came += pread(fd, scratch, (size_t)(length + 1) * 2, offsets[i]);
        widen(scratch, length, x + i % batch * length, y + i % batch * length);
    }
    return came;
}

int64_t bare_windows_mapped(const unsigned char *base, const int64_t *offsets, int64_t batches, int64_t batch, int64_t length, int64_t *x, int64_t *y) {
    for (int64_t i = 0; i < batches * batch; i++) {
        widen((const token *)(base + offsets[i]), length, x + i % batch * length, y + i % batch * length);
    }
    return batches * batch * (length + 1) * 2;
}

int64_t bare_rows(int fd, const int64_t *offsets, int64_t batches, int64_t batch, int64_t bytes, unsigned char *into) {
    int64_t came = 0;
    for (int64_t i = 0; i < batches * batch; i++) came += pread(fd, into + i % batch * bytes, (size_t)bytes, offsets[i]);
    return came;
}
