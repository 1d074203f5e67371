/* Sweeps: runs that lie near one another are read as one, in the order of the file, and dealt out from there.
 *
 * Through the page cache, where somebody else brought the pages in; or, with direct descriptors and a queue of the
 * kernel, from the disk, many stretches in flight. */
#include "queue.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define NEAR 8192 /* a read costs as much as copying this much more from the page cache */
#define DIGIT 11  /* bits sorted by at a time: their counters stay in the first-level cache */
#define STRETCHES 7 /* in flight: enough for the disk's rate, and a block of 256 KiB with its ends fits a seventh of 2 MiB */

/* misses[0 .. count) become all runs in the order of the file, to the page: a radix sort, at about 10 ns per run. Its
 * other half of the memory stands behind them. */
static const lt_miss *in_file_order(lt_queue *queue, const lt_runs *runs) {
    int64_t count = runs->count;
    lt_miss *from = queue->misses, *to = from + count;
    uint64_t differ = 0, first = 0;
    for (int64_t run = 0; run < count; run++) {
        uint64_t place = (uint64_t)lt_fd(runs, run) << 44 | (uint64_t)runs->offsets[run] / PAGE;
        if (run == 0) first = place;
        differ |= place ^ first;
        from[run] = (lt_miss){run, (int64_t)place};
    }
    for (int shift = 0; shift < 64 && differ >> shift; shift += DIGIT) {
        uint32_t begin[(1 << DIGIT) + 1] = {0};
        if (!(differ >> shift & ((1 << DIGIT) - 1))) continue;
        for (int64_t i = 0; i < count; i++) begin[((uint64_t)from[i].at >> shift & ((1 << DIGIT) - 1)) + 1]++;
        for (int digit = 0; digit < 1 << DIGIT; digit++) begin[digit + 1] += begin[digit];
        for (int64_t i = 0; i < count; i++) to[begin[(uint64_t)from[i].at >> shift & ((1 << DIGIT) - 1)]++] = from[i];
        lt_miss *sorted = to;
        to = from, from = sorted;
    }
    return from;
}

/* Sorted runs [i, the result) lie in one stretch [*first, *last) of a file, which begins at a multiple of `unit` and has
 * at most `most` bytes; the first run alone may have more. */
static int64_t stretch(const lt_runs *runs, const lt_miss *sorted, int64_t i, int64_t unit, int64_t most, int64_t *first, int64_t *last) {
    int fd = lt_fd(runs, sorted[i].run);
    *first = runs->offsets[sorted[i].run] / unit * unit, *last = runs->offsets[sorted[i].run] + lt_length(runs, sorted[i].run);
    for (i++; i < runs->count && lt_fd(runs, sorted[i].run) == fd; i++) {
        int64_t offset = runs->offsets[sorted[i].run], end = offset + lt_length(runs, sorted[i].run);
        if (offset > *last + NEAR || end > *first + most) break;
        if (end > *last) *last = end;
    }
    return i;
}

static void deal(lt_call *call, const lt_miss *sorted, int64_t i, int64_t behind, int64_t first, const unsigned char *bytes) {
    const lt_runs *runs = &call->runs;
    for (; i < behind; i++) {
        int64_t run = sorted[i].run;
        lt_deliver(call, run, 0, bytes + (runs->offsets[run] - first), lt_length(runs, run));
    }
}

int lt_stretch_next(lt_pieces *pieces, lt_slot *slot) {
    const lt_runs *runs = &pieces->call->runs;
    int64_t last, unit = pieces->alignment > PAGE ? pieces->alignment : PAGE;
    slot->run = pieces->next, slot->got = 0, slot->stuck = 0, slot->skip = 0;
    slot->fd = lt_direct(runs, pieces->misses[pieces->next].run);
    slot->at = pieces->next = stretch(runs, pieces->misses, pieces->next, unit, pieces->piece, &slot->first, &last);
    slot->length = last - slot->first;
    slot->span = (slot->length + pieces->alignment - 1) / pieces->alignment * pieces->alignment;
    return 1;
}

void lt_stretch_came(lt_pieces *pieces, const lt_slot *slot) {
    deal(pieces->call, pieces->misses, slot->run, slot->at, slot->first, slot->memory);
}

/* Whether all runs can be read in slots of so many bytes: a pipe in a queue would be waited for for ever. */
static int fit_slots(const lt_runs *runs, int64_t bytes, int64_t unit) {
    struct stat found;
    int32_t last = -1;
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t fd = lt_direct(runs, run);
        if (lt_length(runs, run) > bytes - 2 * unit) return 0;
        if (fd != last && (fstat(fd, &found) != 0 || !(S_ISREG(found.st_mode) || S_ISBLK(found.st_mode)))) return 0;
        last = fd;
        if (runs->one_fd && runs->one_length) break;
    }
    return 1;
}

/* From the disk, past the page cache; 0: not all of it came. */
static int sweep_disk(lt_queue *queue, lt_call *call, const lt_miss *sorted) {
    int64_t unit = queue->alignment > PAGE ? queue->alignment : PAGE, bytes = queue->bytes / STRETCHES / unit * unit;
    if (call->runs.direct == NULL || queue->way < LT_AIO || !fit_slots(&call->runs, bytes, unit)) return 0;
    lt_pieces pieces = {.call = call, .misses = sorted, .count = call->runs.count, .piece = bytes, .alignment = queue->alignment, .near = 1};
    int status = lt_keep_in_flight(queue, &pieces, queue->depth < STRETCHES ? queue->depth : STRETCHES, bytes);
    if (status == LT_LOST) queue->way = LT_ANNOUNCE;
    return status == LT_FINE && !pieces.failed;
}

/* Bytes [first, last) of a file, all of them, into the scratch buffer; 0: they did not come. */
static int fill_scratch(lt_queue *queue, lt_call *call, int fd, int64_t first, int64_t last) {
    for (int64_t got = 0; got < last - first;) {
        ssize_t more = pread(fd, queue->scratch + got, (size_t)(last - first - got), first + got);
        if (more < 0 && errno == EINTR && !lt_asks_to_stop(call, 1)) continue;
        if (more <= 0) return 0;
        got += more;
    }
    return 1;
}

static void sweep_cache(lt_queue *queue, lt_call *call, const lt_miss *sorted) {
    const lt_runs *runs = &call->runs;
    int64_t first, last;
    for (int64_t i = 0, behind; i < runs->count && !atomic_load_explicit(&call->stop, memory_order_relaxed); i = behind) {
        behind = stretch(runs, sorted, i, PAGE, LT_SCRATCH, &first, &last);
        int alone = behind == i + 1 || last - first > LT_SCRATCH;
        if (!alone && fill_scratch(queue, call, lt_fd(runs, sorted[i].run), first, last)) {
            deal(call, sorted, i, behind, first, queue->scratch);
        } else { /* what did not come together is read alone, which finds out why */
            for (int64_t k = i; k < behind; k++) lt_read_plain(queue, call, sorted[k].run, 0);
        }
        lt_asks_to_stop(call, 0);
    }
    call->cached = runs->count;
}

int lt_read_near(lt_queue *queue, lt_call *call) {
    if (lt_runs_in_order(call)) return lt_read_over_gaps(queue, call), LT_FINE;
    if (call->runs.count > UINT32_MAX || !lt_has_room(queue, 2 * call->runs.count)) return LT_NO_MEMORY;
    const lt_miss *sorted = in_file_order(queue, &call->runs);
    if (!sweep_disk(queue, call, sorted)) sweep_cache(queue, call, sorted);
    free(queue->misses); /* as large as the call, which the queue outlives */
    queue->misses = NULL, queue->room = 0;
    return LT_FINE;
}
