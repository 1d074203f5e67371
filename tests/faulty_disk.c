/* A disk that fails on purpose, below both engines: loaded before libc (LD_PRELOAD), it stands between a process and its
 * positioned reads and spoils the n-th one. Armed and disarmed by tests/faults.py through ctypes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { OFF, FAILS, SHORT, NOTHING };

static _Atomic int kind = OFF, code, persistent;
static _Atomic long at, calls, fired;

void faulty_disk_arm(int what, int error, long first, int on) {
    calls = 0;
    fired = 0;
    at = first;
    code = error;
    persistent = on;
    kind = what;
}
void faulty_disk_watch(void) { faulty_disk_arm(OFF, 0, 0, 0); }
void faulty_disk_heal(void) { kind = OFF; }
long faulty_disk_calls(void) { return calls; }
long faulty_disk_fired(void) { return fired; }

static int spoiled(int fd) {
    struct stat found;
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return 0;
    long now = ++calls;
    if (kind == OFF || !(now == at || (persistent && now > at))) return 0;
    fired++;
    return 1;
}

static ssize_t spoil(ssize_t (*read_half)(void *, size_t), void *token, size_t wanted) {
    if (kind == NOTHING) return 0;
    if (kind == SHORT) return read_half(token, wanted > 1 ? wanted / 2 : wanted);
    errno = code;
    return -1;
}

struct call { int fd; void *buffer; const struct iovec *parts; off_t offset; int flags, vectored; };

static ssize_t real_read(struct call *one, void *into, size_t size) {
    static ssize_t (*preadv2_)(int, const struct iovec *, int, off_t, int);
    if (!preadv2_) preadv2_ = dlsym(RTLD_NEXT, "preadv2");
    struct iovec part = {into, size};
    return preadv2_(one->fd, &part, 1, one->offset, one->flags);
}

static ssize_t half(void *token, size_t size) {
    struct call *one = token;
    return real_read(one, one->vectored ? one->parts[0].iov_base : one->buffer, size);
}

ssize_t pread(int fd, void *buffer, size_t size, off_t offset) {
    struct call one = {fd, buffer, NULL, offset, 0, 0};
    return spoiled(fd) ? spoil(half, &one, size) : real_read(&one, buffer, size);
}
ssize_t pread64(int fd, void *buffer, size_t size, off_t offset) { return pread(fd, buffer, size, offset); }

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "preadv2");
    struct call one = {fd, NULL, parts, offset, flags, 1};
    if (count > 0 && spoiled(fd)) return spoil(half, &one, parts[0].iov_len);
    return real(fd, parts, count, offset, flags);
}
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) { return preadv2(fd, parts, count, offset, flags); }
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset) { return preadv2(fd, parts, count, offset, 0); }
ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t offset) { return preadv2(fd, parts, count, offset, 0); }
