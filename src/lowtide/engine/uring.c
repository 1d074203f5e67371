/* io_uring by raw system calls: a ring of submissions and one of completions shared with the kernel.
 *
 * One system call hands over a whole batch and waits for its first completions. The staging memory is registered where
 * the limit on locked memory allows it, which saves pinning its pages for every read. */
#include "queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__has_include) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>

#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif

typedef struct {
    int fd, fixed;
    unsigned depth, prepared; /* submissions written but not yet handed over */
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    void *rings;
    size_t rings_bytes, sqes_bytes;
} uring;

static void close_uring(void *self, int forked) {
    uring *ring = self;
    if (ring == NULL) return;
    if (!forked) { /* a child does not inherit the mappings: their addresses may be somebody else's by now */
        if (ring->sqes) munmap(ring->sqes, ring->sqes_bytes);
        if (ring->rings) munmap(ring->rings, ring->rings_bytes);
    }
    if (ring->fd >= 0) close(ring->fd);
    free(ring);
}

static void *mapped(int fd, size_t bytes, off_t what) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    if (at == MAP_FAILED) return NULL;
    madvise(at, bytes, MADV_DONTFORK); /* two processes on one ring would corrupt it */
    return at;
}

void *lt_uring_open(unsigned depth, unsigned char *staging, int64_t bytes, int *error) {
    struct io_uring_params params = {.flags = IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN};
    uring *ring = calloc(1, sizeof *ring);
    if (ring == NULL) return *error = ENOMEM, NULL;
    ring->fd = (int)syscall(SYS_io_uring_setup, depth, &params);
    if (ring->fd < 0 && errno == EINVAL) { /* before Linux 5.19 */
        memset(&params, 0, sizeof params);
        params.flags = IORING_SETUP_CLAMP;
        ring->fd = (int)syscall(SYS_io_uring_setup, depth, &params);
    }
    if (ring->fd < 0) return *error = errno, close_uring(ring, 0), NULL;
    if (!(params.features & IORING_FEAT_SINGLE_MMAP) || params.sq_entries < depth) {
        return *error = ENOSYS, close_uring(ring, 0), NULL;
    }
    size_t sq = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = sq > cq ? sq : cq;
    ring->sqes_bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    ring->rings = mapped(ring->fd, ring->rings_bytes, IORING_OFF_SQ_RING);
    if (ring->rings) ring->sqes = mapped(ring->fd, ring->sqes_bytes, IORING_OFF_SQES);
    if (ring->sqes == NULL) return *error = errno, close_uring(ring, 0), NULL;
    unsigned char *base = ring->rings;
    ring->depth = depth;
    ring->sq_tail = (unsigned *)(base + params.sq_off.tail);
    ring->sq_mask = (unsigned *)(base + params.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(base + params.sq_off.array);
    ring->cq_head = (unsigned *)(base + params.cq_off.head);
    ring->cq_tail = (unsigned *)(base + params.cq_off.tail);
    ring->cq_mask = (unsigned *)(base + params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(base + params.cq_off.cqes);
    struct iovec all = {staging, (size_t)bytes};
    ring->fixed = syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &all, 1) == 0;
    return ring;
}

static int queue_uring(void *self, unsigned index, const lt_slot *slot) {
    uring *ring = self;
    unsigned tail = *ring->sq_tail, place = tail & *ring->sq_mask;
    struct io_uring_sqe *sqe = &ring->sqes[place];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = ring->fixed ? IORING_OP_READ_FIXED : IORING_OP_READ;
    sqe->fd = slot->fd;
    sqe->addr = (uint64_t)(uintptr_t)(slot->memory + slot->got);
    sqe->len = (uint32_t)(slot->span - slot->got);
    sqe->off = (uint64_t)(slot->first + slot->got);
    sqe->user_data = index;
    ring->sq_array[place] = place;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    ring->prepared++;
    return 0;
}

static int wait_uring(void *self, unsigned least, unsigned *slots, int64_t *results) {
    uring *ring = self;
    unsigned count = 0;
    long handed = syscall(SYS_io_uring_enter, ring->fd, ring->prepared, least, IORING_ENTER_GETEVENTS, NULL, 0);
    int failed = errno, interrupted = handed < 0 && failed == EINTR;
    if (handed > 0) ring->prepared -= (unsigned)handed;
    unsigned head = *ring->cq_head, tail = __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE);
    for (; head != tail && count < ring->depth; head++, count++) {
        const struct io_uring_cqe *cqe = &ring->cqes[head & *ring->cq_mask];
        slots[count] = (unsigned)cqe->user_data;
        results[count] = cqe->res;
    }
    __atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
    if (handed < 0 && failed != EINTR && failed != EAGAIN && failed != EBUSY) {
        ring->fd = -1; /* somebody closed it, and the number may be anybody's by now */
        return -2;
    }
    return count == 0 && interrupted ? -1 : (int)count;
}

const lt_backend lt_uring = {queue_uring, wait_uring, close_uring};

#else /* headers older than Linux 5.1 */

void *lt_uring_open(unsigned depth, unsigned char *staging, int64_t bytes, int *error) {
    (void)depth, (void)staging, (void)bytes;
    return *error = ENOSYS, NULL;
}
const lt_backend lt_uring = {NULL, NULL, NULL};

#endif
