/* A queue's life, and one call through it: what is cached at once, the misses all together by the queue's way. */
#include "queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define HUGE (2 * 1024 * 1024)     /* of a machine with pages of 4 KiB */
#define LARGEST_PIECE (512 * 1024) /* long runs: reads this long reach the device's rate with a few in flight */

/* Asked at every call to tell a child of fork from its parent; getpid alone would be a tenth of a warm read. */
static pid_t process;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forked(void) { process = getpid(); }

static void watch_forks(void) {
    forked();
    pthread_atfork(NULL, NULL, forked);
}

pid_t lt_process(void) {
    pthread_once(&once, watch_forks);
    return process;
}

static int64_t rounded(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/* From 2 MiB on huge ones, where there are any: the device is told one address instead of one per 4 KiB, which made long
 * direct reads three times as fast. */
static unsigned char *pages(int64_t bytes) {
    int64_t more = bytes < HUGE ? 0 : HUGE - PAGE;
    unsigned char *at = mmap(NULL, (size_t)(bytes + more), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    if (more) {
        int64_t before = (HUGE - (int64_t)((uintptr_t)at % HUGE)) % HUGE;
        if (before) munmap(at, (size_t)before);
        at += before;
        if (more > before) munmap(at + bytes, (size_t)(more - before));
        madvise(at, (size_t)bytes, MADV_HUGEPAGE);
    }
    /* A fork while the device writes would give one of the two processes a stale copy. */
    madvise(at, (size_t)bytes, MADV_DONTFORK);
    return at;
}

int64_t lt_least_staging(int way, int64_t alignment) {
    /* At least 8 reads have room for a page of a long run and its unaligned ends. */
    return way < LT_AIO ? 0 : 8 * (PAGE + 2 * alignment);
}

static int open_way(lt_queue *queue) {
    int error = 0;
    if (*lt_forbidden(queue->way)) return EPERM;
    if (queue->way == LT_URING) {
        queue->backend = &lt_uring;
        queue->self = lt_uring_open(queue->depth, queue->staging, queue->bytes, &error);
    } else if (queue->way == LT_AIO) {
        queue->backend = &lt_aio;
        queue->self = lt_aio_open(queue->depth, &error);
    }
    return error;
}

int lt_queue_open(lt_queue *queue, int way, unsigned depth, int64_t bytes, int64_t alignment) {
    memset(queue, 0, sizeof *queue);
    if (bytes < lt_least_staging(way, alignment)) return EINVAL;
    queue->way = way, queue->depth = depth, queue->alignment = alignment;
    queue->owner = lt_process();
    queue->bytes = way >= LT_AIO ? rounded(bytes, PAGE) : 0;
    queue->scratch = pages(LT_SCRATCH);
    if (queue->scratch == NULL) return ENOMEM;
    if (queue->bytes) queue->staging = pages(queue->bytes);
    int error = queue->bytes && queue->staging == NULL ? ENOMEM : open_way(queue);
    if (error) lt_queue_close(queue);
    return error;
}

void lt_queue_close(lt_queue *queue) {
    /* After a fork nothing of the parent's is touched: its rings and staging are not here. */
    int forked = queue->owner != lt_process();
    if (queue->self) queue->backend->close(queue->self, forked);
    if (queue->staging && !forked) munmap(queue->staging, (size_t)queue->bytes);
    if (queue->scratch && !forked) munmap(queue->scratch, LT_SCRATCH);
    free(queue->misses);
    memset(queue, 0, sizeof *queue);
}

/* Keeps reads in flight until every piece has come, or until it is told to stop; then waits for those that fly. */
int lt_keep_in_flight(lt_queue *queue, lt_pieces *pieces, unsigned slots, int64_t slot_bytes) {
    lt_slot *slot = malloc(slots * (sizeof *slot + sizeof(int64_t) + 2 * sizeof(unsigned)));
    if (slot == NULL) return LT_NO_MEMORY;
    int64_t *results = (int64_t *)(slot + slots);
    unsigned *vacant = (unsigned *)(results + slots), *came = vacant + slots, empty = slots, flying = 0;
    int more = 1, found = LT_FINE;
    for (unsigned i = 0; i < slots; i++) vacant[i] = slots - 1 - i;
    for (;;) {
        while (more && empty) {
            unsigned index = vacant[empty - 1];
            if (!lt_pieces_next(pieces, &slot[index])) {
                more = 0;
                break;
            }
            slot[index].memory = queue->staging + index * slot_bytes;
            queue->backend->queue(queue->self, index, &slot[index]);
            empty--, flying++;
        }
        if (flying == 0) break;
        /* Waiting for a few at a time widens some while others fly; waiting for each alone would wake us too often. */
        unsigned few = more ? flying / 4 + 1 : 16;
        int count = queue->backend->wait(queue->self, flying < few ? flying : few, came, results);
        if (count == -2) {
            found = LT_LOST;
            break;
        }
        if (count <= 0 && lt_asks_to_stop(pieces->call, 1) == LT_LEAVE) break;
        for (int i = 0; i < count; i++) {
            unsigned index = came[i];
            if (results[i] == -ECANCELED) { /* the kernel found no thread of its own for it */
                vacant[empty++] = index, flying--, more = 0, found = LT_LOST;
            } else if (lt_slot_came(pieces, &slot[index], results[i]) == LT_SLOT_AGAIN) {
                queue->backend->queue(queue->self, index, &slot[index]);
            } else {
                vacant[empty++] = index, flying--;
            }
        }
        if (lt_asks_to_stop(pieces->call, 0) == LT_LEAVE) break;
    }
    free(slot);
    return found;
}

/* A pipe or an eventfd in a queue would be waited for for ever, and directories have other errors there than in pread:
 * the misses before the first file that is no file. */
static int64_t only_files(lt_queue *queue, lt_call *call, int64_t missed) {
    struct stat found;
    int32_t last = -1;
    for (int64_t i = 0; i < missed; i++) {
        const lt_miss *miss = &queue->misses[i];
        int32_t fd = call->runs.direct ? lt_direct(&call->runs, miss->run) : lt_fd(&call->runs, miss->run);
        if (fd == last) continue;
        last = fd;
        if (fstat(fd, &found) != 0 || S_ISREG(found.st_mode) || S_ISBLK(found.st_mode)) continue;
        lt_note(call, LT_READ_FAILED, miss->run, miss->at, S_ISDIR(found.st_mode) ? EISDIR : ESPIPE);
        return i;
    }
    return missed;
}

/* Memory of a read in as few pages as can be. The device is told each of them, and where two are told for 2,560 bytes
 * some virtual disks have room for fewer reads at a time. */
static int64_t in_whole_pages(int64_t bytes) {
    int64_t part = PAGE;
    while (part / 2 >= bytes) part /= 2;
    return rounded(bytes, part);
}

static int read_together(lt_queue *queue, lt_call *call, int64_t missed) {
    int64_t longest = 0, align = call->runs.direct ? queue->alignment : 1;
    for (int64_t i = 0; i < missed; i++) {
        int64_t left = lt_length(&call->runs, queue->misses[i].run) - queue->misses[i].at;
        if (left > longest) longest = left;
    }
    int64_t most = queue->bytes / 8 - 2 * align;
    if (most > LARGEST_PIECE) most = LARGEST_PIECE;
    int64_t piece = longest < most ? longest : most / PAGE * PAGE; /* whole tokens, whatever their size */
    int64_t slot_bytes = align > 1 ? (piece + 2 * align - 2) / align * align : rounded(piece, 64);
    lt_pieces pieces = {.call = call, .misses = queue->misses, .count = missed, .piece = piece, .alignment = align};
    int64_t most_slots = longest <= piece && missed < queue->depth ? missed : queue->depth, slots = queue->bytes / slot_bytes;
    int64_t apart = in_whole_pages(slot_bytes);
    if (queue->bytes / apart >= most_slots) slot_bytes = apart;
    if (slots > most_slots) slots = most_slots;
    return lt_keep_in_flight(queue, &pieces, (unsigned)slots, slot_bytes);
}

int lt_queue_fill(lt_queue *queue, lt_call *call) {
    if (queue->scratch == NULL || queue->owner != lt_process()) return LT_REFUSED;
    int64_t missed;
    /* Dropping behind a sequence through the page cache only holds in order: the read-ahead of a late read would bring
     * back what was dropped after it. */
    int in_order = call->drop == LT_KEEP_SEQUENTIAL || (call->drop == LT_DROP_SEQUENTIAL && call->runs.direct == NULL);
    if (call->drop == LT_KEEP_NEAR) {
        if (lt_read_near(queue, call) == LT_NO_MEMORY) return LT_NO_MEMORY;
    } else if (queue->way == LT_READ || in_order) {
        for (int64_t run = 0; run < call->runs.count && run <= lt_worst(call); run++) {
            lt_read_plain(queue, call, run, 0);
            if ((run & 15) == 15 && lt_asks_to_stop(call, 0)) break;
        }
    } else if ((missed = lt_read_cached(queue, call)) < 0) {
        return LT_NO_MEMORY;
    } else if (atomic_load(&call->stop)) {
        return LT_INTERRUPTED;
    } else if (queue->way == LT_ANNOUNCE) {
        lt_announce(&call->runs, queue->misses, missed);
        for (int64_t i = 0; i < missed && queue->misses[i].run <= lt_worst(call); i++) {
            lt_read_plain(queue, call, queue->misses[i].run, queue->misses[i].at);
            if ((i & 15) == 15 && lt_asks_to_stop(call, 0)) break;
        }
    } else if ((missed = only_files(queue, call, missed))) {
        int how = read_together(queue, call, missed);
        if (how == LT_NO_MEMORY) return LT_NO_MEMORY;
        if (how == LT_LOST) { /* a library that becomes a daemon closes every descriptor, the ring's too: read on without */
            queue->way = LT_ANNOUNCE;
            for (int64_t i = 0; i < missed && queue->misses[i].run <= lt_worst(call); i++) {
                lt_read_plain(queue, call, queue->misses[i].run, queue->misses[i].at);
            }
        }
        for (int64_t i = 0; call->drop && !call->runs.direct && i < missed; i++) lt_drop_run(&call->runs, queue->misses[i].run, call->drop);
    }
    if (atomic_load(&call->stop)) return LT_INTERRUPTED;
    return call->problem.kind;
}
