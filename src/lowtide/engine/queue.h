/* A queue: what reading many runs at once needs and keeps between calls - a ring or a context, and staging memory that
 * belongs to it. One call uses a queue at a time. */
#ifndef LOWTIDE_QUEUE_H
#define LOWTIDE_QUEUE_H

#include "core.h"

/* Runs that are not cached, cut into pieces that fit a slot. */
typedef struct {
    int64_t run, at; /* the run and its first byte that is still missing */
} lt_miss;

typedef struct {
    lt_call *call;
    const lt_miss *misses;
    int64_t count, next, at; /* at: within misses[next] */
    int64_t piece;           /* most bytes of a run in one piece */
    int64_t alignment;       /* 1: buffered reads */
    int near, failed;        /* near: in stretches of neighbours; failed: one of those did not come */
} lt_pieces;

/* One read in flight. Bytes [first + got, first + span) go to memory + got; the piece is [skip, skip + length). A
 * stretch is of misses [run, at). */
typedef struct {
    int64_t run, at, length;
    int fd;
    int64_t first, span, got, skip;
    int stuck;
    unsigned char *memory;
} lt_slot;

enum { LT_SLOT_AGAIN, LT_SLOT_DONE };

/* pieces.c */
int lt_pieces_next(lt_pieces *pieces, lt_slot *slot);
int lt_slot_came(lt_pieces *pieces, lt_slot *slot, int64_t result);

/* near.c: the next stretch of neighbours, and its runs once it has come */
int lt_stretch_next(lt_pieces *pieces, lt_slot *slot);
void lt_stretch_came(lt_pieces *pieces, const lt_slot *slot);

/* A way to keep reads in flight. `queue` prepares a slot; `wait` submits what was prepared and collects at least
 * `least` results into (slot, result) pairs; it returns their number, or -1 when a signal came first. */
typedef struct {
    int (*queue)(void *self, unsigned index, const lt_slot *slot);
    int (*wait)(void *self, unsigned least, unsigned *slots, int64_t *results);
    void (*close)(void *self, int forked);
} lt_backend;

extern const lt_backend lt_uring, lt_aio;
void *lt_uring_open(unsigned depth, unsigned char *staging, int64_t bytes, int *error);
void *lt_aio_open(unsigned depth, int *error);

typedef struct {
    int way;
    unsigned depth;    /* most reads in flight */
    int64_t bytes;     /* of staging */
    int64_t alignment; /* of O_DIRECT reads */
    unsigned char *staging, *scratch;
    const lt_backend *backend;
    void *self;
    pid_t owner;
    lt_miss *misses;
    int64_t room; /* of misses */
    int cold;     /* the last call found nothing in the page cache */
    int no_nowait, no_cachestat, no_dontcache;
    int64_t warm; /* runs found in the page cache since one was not */
    unsigned calls;
} lt_queue;

/* queue.c. process: this process, without a system call. open: 0 or errno. fill: LT_FINE ... ; call->problem tells the rest. */
pid_t lt_process(void);
int64_t lt_least_staging(int way, int64_t alignment);
int lt_queue_open(lt_queue *queue, int way, unsigned depth, int64_t bytes, int64_t alignment);
int lt_queue_fill(lt_queue *queue, lt_call *call);
int lt_keep_in_flight(lt_queue *queue, lt_pieces *pieces, unsigned slots, int64_t slot_bytes); /* LT_FINE, LT_LOST or LT_NO_MEMORY */
void lt_queue_close(lt_queue *queue);

/* cached.c */
int64_t lt_read_cached(lt_queue *queue, lt_call *call); /* the number of misses, or -1 without memory */
void lt_read_plain(lt_queue *queue, lt_call *call, int64_t run, int64_t at);
void lt_announce(const lt_runs *runs, const lt_miss *misses, int64_t count);
void lt_drop_run(const lt_runs *runs, int64_t run, int drop);
int lt_has_room(lt_queue *queue, int64_t count); /* for so many misses */

/* near.c */
int lt_read_near(lt_queue *queue, lt_call *call); /* LT_FINE, or LT_NO_MEMORY */

/* gaps.c */
int lt_runs_in_order(const lt_call *call);
void lt_read_over_gaps(lt_queue *queue, lt_call *call);

#define LT_SCRATCH 65536 /* cached windows pass through this much: it stays in the first-level or second-level cache */

#endif
