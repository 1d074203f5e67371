/* Reads that need no queue: what the page cache has, plain preads, announcements, and dropping behind.
 *
 * RWF_NOWAIT tells a miss without blocking on it, and costs a twelfth of a warm read of 2 KiB. So while runs keep being
 * found it is used on one run in PROBE only, and the others are plain preads; one missed probe puts it back on all.
 *
 * A refused RWF_NOWAIT read is not free of effects: it starts a read-ahead into the page cache. That is welcome where
 * the miss is then read through the cache, and reads everything twice where it is read with O_DIRECT. So with direct
 * descriptors the page cache is asked by cachestat(2), which starts nothing, as soon as one run has missed, and always
 * where nothing may be left behind. */
#include "queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
#define FOLIO (512 * PAGE) /* the largest unit the page cache holds file data in */
#define DONTCACHE 0x80     /* RWF_DONTCACHE, Linux 6.14 */
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#define SAMPLES 4     /* runs asked about when the last call found nothing cached */
#define LOOK_AGAIN 64 /* without cachestat one call in so many tries the cache again */
#define TRUSTED 256   /* so many runs found in the page cache in a row: the next ones are taken to be there too */
#define PROBE 16      /* one in so many of those still asks; a miss ends the trust */

static int unsupported(int error) { return error == EOPNOTSUPP || error == EINVAL || error == ENOSYS; }

static ssize_t read_at(int fd, void *into, int64_t length, int64_t offset, int flags) {
    struct iovec part = {into, (size_t)length};
    return flags ? preadv2(fd, &part, 1, offset, flags) : pread(fd, into, (size_t)length, offset);
}

/* 1: every page of the run is cached, 0: not, -1: the kernel cannot tell. */
static int is_cached(lt_queue *queue, int fd, int64_t offset, int64_t length) {
    struct { uint64_t off, len; } range;
    struct { uint64_t cached, dirty, writeback, evicted, recently; } answer;
    if (queue->no_cachestat) return -1;
    int64_t first = offset / PAGE * PAGE, last = (offset + length + PAGE - 1) / PAGE * PAGE;
    range.off = (uint64_t)first, range.len = (uint64_t)(last - first);
    if (syscall(SYS_cachestat, fd, &range, &answer, 0) != 0) {
        queue->no_cachestat = errno == ENOSYS || errno == EPERM || errno == EOPNOTSUPP;
        return queue->no_cachestat ? -1 : 0;
    }
    return answer.cached >= (uint64_t)(last - first) / PAGE;
}

void lt_drop_run(const lt_runs *runs, int64_t run, int drop) {
    int64_t offset = runs->offsets[run], unit = drop == LT_DROP_SEQUENTIAL ? FOLIO : PAGE;
    int64_t first = offset / unit * unit, last = (offset + lt_length(runs, run) + PAGE - 1) / PAGE * PAGE;
    posix_fadvise(lt_fd(runs, run), first, last - first, POSIX_FADV_DONTNEED);
}

/* Bytes [at, end) of a run: to their place, or through the scratch buffer into x and y. The bytes that came in all;
 * fewer than asked: *error tells, 0 = end of file. */
static int64_t read_run(lt_queue *queue, lt_call *call, int64_t run, int64_t at, int flags, int *error) {
    const lt_runs *runs = &call->runs;
    int64_t length = lt_length(runs, run), item = call->sink.into ? 1 : lt_item(call->sink.source);
    int fd = lt_fd(runs, run);
    while (at < length) {
        int64_t want = length - at, got = 0;
        unsigned char *into = queue->scratch;
        if (call->sink.into) into = call->sink.into + call->sink.targets[run] + at;
        else if (want > LT_SCRATCH) want = LT_SCRATCH;
        while (got < want) {
            ssize_t more = read_at(fd, into + got, want - got, runs->offsets[run] + at + got, flags);
            if (more < 0 && errno == EINTR) {
                if (lt_asks_to_stop(call, 1)) return at;
                continue;
            }
            if (more <= 0) {
                *error = more < 0 ? errno : 0;
                /* Whole tokens that came are looked at too, so that every way reports the same problem. */
                if (!call->sink.into && got >= item && !(flags & RWF_NOWAIT)) lt_deliver(call, run, at, into, got / item * item);
                return flags & RWF_NOWAIT ? at : at + got;
            }
            got += more;
        }
        lt_deliver(call, run, at, into, want);
        at += want;
    }
    return at;
}

void lt_read_plain(lt_queue *queue, lt_call *call, int64_t run, int64_t at) {
    /* Not where a run passes through the scratch buffer: a folio would be dropped with its first piece. */
    int error = 0, whole = call->sink.into || lt_length(&call->runs, run) <= LT_SCRATCH;
    int flags = call->drop == LT_DROP_SEQUENTIAL && whole && !queue->no_dontcache ? DONTCACHE : 0;
    int64_t length = lt_length(&call->runs, run), got = read_run(queue, call, run, at, flags, &error);
    if (got < length && flags && unsupported(error)) {
        queue->no_dontcache = 1; /* this file system has no RWF_DONTCACHE: the drop after the read remains */
        error = 0;
        got = read_run(queue, call, run, at, 0, &error);
    }
    if (got < length && !atomic_load(&call->stop)) lt_note(call, LT_READ_FAILED, run, got, error);
    if (call->drop == LT_DROP || call->drop == LT_DROP_SEQUENTIAL) lt_drop_run(&call->runs, run, call->drop);
}

void lt_announce(const lt_runs *runs, const lt_miss *misses, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t run = misses ? misses[i].run : i, at = misses ? misses[i].at : 0;
        posix_fadvise(lt_fd(runs, run), runs->offsets[run] + at, lt_length(runs, run) - at, POSIX_FADV_WILLNEED);
    }
}

int lt_has_room(lt_queue *queue, int64_t count) {
    if (count <= queue->room) return 1;
    lt_miss *more = realloc(queue->misses, (size_t)count * sizeof *more);
    if (more == NULL) return 0;
    queue->misses = more;
    queue->room = count;
    return 1;
}

/* What a call may expect of the page cache, decided before its first run. */
static int worth_looking(lt_queue *queue, const lt_call *call) {
    if (queue->no_nowait) return 0;
    if (!queue->cold || call->runs.direct == NULL) return 1;
    int64_t count = call->runs.count, step = count > SAMPLES ? count / SAMPLES : 1;
    for (int64_t run = 0; run < count; run += step) {
        int cached = is_cached(queue, lt_fd(&call->runs, run), call->runs.offsets[run], lt_length(&call->runs, run));
        if (cached < 0) return queue->calls % LOOK_AGAIN == 0;
        if (cached) return 1;
    }
    return 0;
}

/* A row of tokens that comes in pieces: they are read one behind another and widened as one, which begins and ends once
 * per row then and not at every piece. */
typedef struct {
    int64_t first, bytes; /* the first run of what is in the scratch buffer, and how much that is */
    int64_t room;         /* bytes of its row that are still to come */
} row_so_far;

static void deliver_row(lt_queue *queue, lt_call *call, row_so_far *row) {
    if (row->bytes) lt_deliver(call, row->first, 0, queue->scratch, row->bytes);
    row->bytes = 0;
}

/* Where a run goes: behind those before it, or to the beginning if it does not follow them in their row. NULL: there is
 * no room for it at all. */
static unsigned char *place_in_row(lt_queue *queue, lt_call *call, row_so_far *row, int64_t run) {
    const lt_sink *sink = &call->sink;
    int64_t length = lt_length(&call->runs, run), item = lt_item(sink->source), columns = sink->length + 1;
    int follows = row->bytes && (sink->targets[run] - sink->targets[row->first]) * item == row->bytes;
    if (!follows || length > row->room || row->bytes + length > LT_SCRATCH) {
        deliver_row(queue, call, row);
        if (length > LT_SCRATCH) return NULL;
        row->first = run, row->room = (columns - sink->targets[run] % columns) * item;
    }
    return queue->scratch + row->bytes;
}

/* A run to the place in the scratch buffer that it was given; whether all of it came. */
static int read_in_row(lt_call *call, int64_t run, unsigned char *into, row_so_far *row, int flags, int *error) {
    int64_t length = lt_length(&call->runs, run), offset = call->runs.offsets[run];
    for (int64_t got = 0; got < length;) {
        ssize_t more = read_at(lt_fd(&call->runs, run), into + got, length - got, offset + got, flags);
        if (more < 0 && errno == EINTR && !lt_asks_to_stop(call, 1)) continue;
        if (more <= 0) return *error = more < 0 ? errno : 0, 0;
        got += more;
    }
    row->bytes += length, row->room -= length;
    return 1;
}

int64_t lt_read_cached(lt_queue *queue, lt_call *call) {
    const lt_runs *runs = &call->runs;
    int64_t missed = 0;
    if (!lt_has_room(queue, runs->count)) return -1;
    queue->calls++;
    int plain = runs->direct == NULL && !call->drop, looking = worth_looking(queue, call), direct = runs->direct != NULL;
    int in_pieces = call->sink.x && !runs->one_length;
    row_so_far row = {.bytes = 0};
    for (int64_t run = 0; run < runs->count; run++) {
        int64_t length = lt_length(runs, run), got = 0;
        int error = 0, trusted = plain && queue->warm >= TRUSTED && queue->warm % PROBE;
        int look = looking && !queue->no_nowait;
        if (look && direct && (missed || call->drop)) look = is_cached(queue, lt_fd(runs, run), runs->offsets[run], length) == 1;
        if (look && length) {
            unsigned char *into = in_pieces ? place_in_row(queue, call, &row, run) : NULL;
            if (into) got = read_in_row(call, run, into, &row, trusted ? 0 : RWF_NOWAIT, &error) ? length : 0;
            else got = read_run(queue, call, run, 0, trusted ? 0 : RWF_NOWAIT, &error);
            if (got < length && !trusted && unsupported(error)) queue->no_nowait = 1;
        }
        if (got == length) {
            call->cached++;
            queue->warm++;
            if (call->drop && length) lt_drop_run(runs, run, call->drop);
        } else {
            /* Also for errors and ends of files: they are found again, in order, by the way that reads misses. */
            queue->misses[missed++] = (lt_miss){run, direct || trusted ? 0 : got};
            queue->warm = 0;
        }
        if ((run & 63) == 63 && lt_asks_to_stop(call, 0)) break;
    }
    deliver_row(queue, call, &row);
    queue->cold = missed > 0 && missed == runs->count;
    return missed;
}
