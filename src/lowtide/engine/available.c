/* Which ways this machine allows, and in words why not. Asked when a queue is opened, never at import. */
#include "queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long number_in(const char *path, const char *key) {
    char line[256];
    long value = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtol(line + strlen(key), NULL, 10);
            break;
        }
    }
    fclose(file);
    return value;
}

const char *lt_forbidden(int way) {
    if (way != LT_URING) return "";
    if (number_in("/proc/sys/kernel/io_uring_disabled", "") == 2) return "io_uring is switched off (kernel.io_uring_disabled = 2)";
    /* A filter may answer an unknown call by ending the process, so behind one it is not even tried. */
    if (number_in("/proc/self/status", "Seccomp:") == 2) return "a seccomp filter is active, as containers have; io_uring is not tried behind one";
    return "";
}

const char *lt_refusal(int way, int error) {
    if (way == LT_AIO && error == ENOSYS) return "this kernel has no Linux AIO";
    if (way == LT_AIO && error == EAGAIN) return "Linux AIO has no room for another queue (fs.aio-max-nr)";
    if (way == LT_AIO) return "Linux AIO is not permitted here";
    if (way != LT_URING) return "there is no memory for it";
    if (error == ENOSYS) return "this kernel or this build has no io_uring";
    if (number_in("/proc/sys/kernel/io_uring_disabled", "") == 1) return "io_uring is for privileged processes only (kernel.io_uring_disabled = 1)";
    if (error == EPERM || error == EACCES) return "io_uring is not permitted here";
    return "io_uring could not be set up (memory or descriptors are exhausted)";
}

const char *lt_unavailable(int way) {
    unsigned char byte;
    int error = 0;
    const char *forbidden = lt_forbidden(way);
    if (*forbidden || way < LT_AIO) return forbidden;
    void *self = way == LT_URING ? lt_uring_open(1, &byte, 1, &error) : lt_aio_open(1, &error);
    if (self == NULL) return lt_refusal(way, error);
    (way == LT_URING ? &lt_uring : &lt_aio)->close(self, 0);
    return "";
}
