/* Linux AIO by raw system calls: the older queue, which default container profiles allow where they refuse io_uring.
 *
 * Asynchronous with O_DIRECT only; a buffered read blocks in io_submit. A context belongs to the address space, so a
 * forked child has none to close.
 *
 * Destroying a context takes 30 ms, in which the kernel waits for every processor. So a few that are idle are kept for
 * the next queue of the process. */
#include "queue.h"

#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    aio_context_t context;
    unsigned depth, prepared, flying;
    struct iocb *blocks;    /* one per slot */
    struct iocb **handed;   /* prepared, in order */
    struct io_event *events;
} aio;

#define KEPT 8
static struct {
    pthread_mutex_t lock;
    pid_t owner; /* the contexts are its own */
    unsigned count;
    struct { aio_context_t context; unsigned depth; } idle[KEPT];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Not where another thread is here just now, or was at a fork: nothing depends on it. */
static int enter_kept(void) {
    if (pthread_mutex_trylock(&kept.lock) != 0) return 0;
    if (kept.owner != lt_process()) kept.owner = lt_process(), kept.count = 0;
    return 1;
}

static aio_context_t take_kept(unsigned depth) {
    aio_context_t found = 0;
    if (!enter_kept()) return 0;
    for (unsigned i = 0; i < kept.count && !found; i++) {
        if (kept.idle[i].depth == depth) found = kept.idle[i].context, kept.idle[i] = kept.idle[--kept.count];
    }
    pthread_mutex_unlock(&kept.lock);
    return found;
}

static int keep(const aio *queue) {
    if (queue->flying || !enter_kept()) return 0;
    int room = kept.count < KEPT;
    if (room) kept.idle[kept.count].context = queue->context, kept.idle[kept.count++].depth = queue->depth;
    pthread_mutex_unlock(&kept.lock);
    return room;
}

static void close_aio(void *self, int forked) {
    aio *queue = self;
    if (queue == NULL) return;
    if (queue->context && !forked && !keep(queue)) syscall(SYS_io_destroy, queue->context);
    free(queue->blocks);
    free(queue->handed);
    free(queue->events);
    free(queue);
}

void *lt_aio_open(unsigned depth, int *error) {
    aio *queue = calloc(1, sizeof *queue);
    if (queue == NULL) return *error = ENOMEM, NULL;
    queue->depth = depth;
    queue->blocks = calloc(depth, sizeof *queue->blocks);
    queue->handed = calloc(depth, sizeof *queue->handed);
    queue->events = calloc(depth, sizeof *queue->events);
    if (!queue->blocks || !queue->handed || !queue->events) return *error = ENOMEM, close_aio(queue, 0), NULL;
    queue->context = take_kept(depth);
    if (!queue->context && syscall(SYS_io_setup, depth, &queue->context) != 0) {
        *error = errno;
        queue->context = 0;
        return close_aio(queue, 0), NULL;
    }
    return queue;
}

static int queue_aio(void *self, unsigned index, const lt_slot *slot) {
    aio *queue = self;
    struct iocb *block = &queue->blocks[index];
    memset(block, 0, sizeof *block);
    block->aio_data = index;
    block->aio_lio_opcode = IOCB_CMD_PREAD;
    block->aio_fildes = (uint32_t)slot->fd;
    block->aio_buf = (uint64_t)(uintptr_t)(slot->memory + slot->got);
    block->aio_nbytes = (uint64_t)(slot->span - slot->got);
    block->aio_offset = slot->first + slot->got;
    queue->handed[queue->prepared++] = block;
    return 0;
}

static void forget(aio *queue, unsigned count) {
    queue->prepared -= count;
    memmove(queue->handed, queue->handed + count, queue->prepared * sizeof *queue->handed);
}

/* Hands over what was prepared. A read that the kernel will not even take is answered here: 1 result, or 0. */
static int submit(aio *queue, unsigned *slots, int64_t *results) {
    while (queue->prepared) {
        long taken = syscall(SYS_io_submit, queue->context, (long)queue->prepared, queue->handed);
        if (taken > 0) {
            queue->flying += (unsigned)taken;
            forget(queue, (unsigned)taken);
            continue;
        }
        int error = taken < 0 ? errno : EAGAIN;
        if (error == EINTR) continue;
        if (error == EAGAIN && queue->flying) return 0; /* no room in the context until something completes */
        struct iocb *block = queue->handed[0];
        slots[0] = (unsigned)block->aio_data;
        results[0] = -error;
        if (error == EAGAIN) { /* no room at all: this one is read without a queue */
            ssize_t got = pread((int)block->aio_fildes, (void *)(uintptr_t)block->aio_buf, block->aio_nbytes, block->aio_offset);
            results[0] = got < 0 ? -errno : got;
        }
        forget(queue, 1);
        return 1;
    }
    return 0;
}

static int wait_aio(void *self, unsigned least, unsigned *slots, int64_t *results) {
    aio *queue = self;
    if (submit(queue, slots, results)) return 1;
    if (least > queue->flying) least = queue->flying;
    long came = syscall(SYS_io_getevents, queue->context, (long)least, (long)queue->depth, queue->events, NULL);
    if (came < 0) return -1;
    for (long i = 0; i < came; i++) {
        slots[i] = (unsigned)queue->events[i].data;
        results[i] = queue->events[i].res;
    }
    queue->flying -= (unsigned)came;
    return (int)came;
}

const lt_backend lt_aio = {queue_aio, wait_aio, close_aio};
