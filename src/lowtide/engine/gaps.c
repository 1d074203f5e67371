/* Rows of a mask: runs in the order of the file with small gaps between them, read in one call with the gaps sent to the
 * scratch buffer. Every byte is copied once, where reading all and copying the rows out copies wanted ones twice. */
#include "queue.h"

#include <stddef.h>
#include <sys/uio.h>

#define GAP 8192   /* a read costs as much as copying this much more from the page cache */
#define PARTS 1024 /* the most that preadv takes: IOV_MAX */

/* Whether runs follow one another in their files, and pass through nothing on their way. */
int lt_runs_in_order(const lt_call *call) {
    const lt_runs *runs = &call->runs;
    if (call->sink.into == NULL || runs->direct) return 0;
    for (int64_t run = 1; run < runs->count; run++) {
        int same = lt_fd(runs, run) == lt_fd(runs, run - 1);
        if (same && runs->offsets[run] < runs->offsets[run - 1] + lt_length(runs, run - 1)) return 0;
    }
    return 1;
}

/* Runs [run, the result) as parts of one read, `count` of them, up to byte *last of the file. */
static int64_t parts_of(lt_queue *queue, const lt_call *call, int64_t run, struct iovec *parts, int *count, int64_t *last) {
    const lt_runs *runs = &call->runs;
    int fd = lt_fd(runs, run), many = 0;
    *last = runs->offsets[run];
    for (; run < runs->count && lt_fd(runs, run) == fd && many + 2 <= PARTS; run++) {
        int64_t gap = runs->offsets[run] - *last, length = lt_length(runs, run);
        unsigned char *into = call->sink.into + call->sink.targets[run];
        if (gap > GAP) break;
        if (gap) parts[many++] = (struct iovec){queue->scratch, (size_t)gap};
        if (!gap && many && (unsigned char *)parts[many - 1].iov_base + parts[many - 1].iov_len == into) parts[many - 1].iov_len += (size_t)length;
        else parts[many++] = (struct iovec){into, (size_t)length};
        *last += gap + length;
    }
    *count = many;
    return run;
}

void lt_read_over_gaps(lt_queue *queue, lt_call *call) {
    const lt_runs *runs = &call->runs;
    struct iovec parts[PARTS];
    int64_t last;
    int count;
    for (int64_t run = 0, behind; run < runs->count && run <= lt_worst(call); run = behind) {
        behind = parts_of(queue, call, run, parts, &count, &last);
        int64_t wanted = last - runs->offsets[run];
        if (preadv(lt_fd(runs, run), parts, count, runs->offsets[run]) != wanted) {
            /* What did not come together is read alone, which finds out why. */
            for (int64_t k = run; k < behind && k <= lt_worst(call); k++) lt_read_plain(queue, call, k, 0);
        }
        if (lt_asks_to_stop(call, 0)) break;
    }
    call->cached = runs->count;
}
