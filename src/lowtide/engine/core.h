/* What the C core is made of: runs of bytes, where they go, and what went wrong.
 *
 * Every way of reading ends in the same `lt_deliver`, which copies bytes to their place or widens tokens into x and y;
 * a way only decides how bytes reach memory. One thread works on a call. Nothing here knows Python.
 */
#ifndef LOWTIDE_CORE_H
#define LOWTIDE_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum { LT_FINE = 0, LT_READ_FAILED = 1, LT_BAD_TOKEN = 2, LT_INTERRUPTED = 3, LT_NO_MEMORY = 4, LT_REFUSED = 5, LT_LOST = 6 };

/* Types of tokens on disk. */
enum { LT_UINT8, LT_UINT16, LT_UINT32, LT_INT32, LT_INT64, LT_SOURCES };

/* How misses are read. READ and ANNOUNCE need nothing but system calls that every machine has. */
enum { LT_READ, LT_ANNOUNCE, LT_AIO, LT_URING, LT_WAYS };

/* What happens to the page cache behind the reads. SEQUENTIAL also asks the kernel not to cache (RWF_DONTCACHE). NEAR
 * keeps, and reads runs that lie near one another as one, in the order of the file. KEEP_SEQUENTIAL reads run after run
 * and tells the kernel nothing, whose own read-ahead is faster there than announced reads. */
enum { LT_KEEP, LT_DROP, LT_DROP_SEQUENTIAL, LT_KEEP_NEAR, LT_KEEP_SEQUENTIAL };

typedef struct {
    int64_t count;
    const int32_t *fds;    /* one per run, or one for all */
    const int32_t *direct; /* the same files opened with O_DIRECT, in the same shape; NULL: none */
    int one_fd;
    const int64_t *offsets;
    const int64_t *lengths; /* one per run, or one for all */
    int one_length;
} lt_runs;

/* Where runs go. With `into` bytes are copied to into + targets[run]. Without it they are tokens of a narrow array of
 * rows x (length + 1) that exists nowhere: targets[run] is the run's first token in it, and columns 0 .. length-1 are
 * widened into x, columns 1 .. length into y. A run stays inside one row; several runs may share a row. Without `x` too,
 * marks are noted and nothing is kept. */
typedef struct {
    unsigned char *into;
    const int64_t *targets;
    void *x, *y;
    int64_t length;
    int source;     /* LT_UINT8 ... */
    int wide;       /* bytes of an element of x and y: 4 or 8 */
    uint64_t limit; /* ids must be below it; 0: every id that the wide type can hold */
    int64_t *marks; /* NULL, or how often `mark` was seen (above the room: more often), and behind it where, in no order and perhaps twice */
    int64_t marks_room, mark;
} lt_sink;

/* The failure of lowest run number. kind READ_FAILED: `at` bytes of the run came, value is errno, 0 = end of file.
 * kind BAD_TOKEN: value is the id that stands `at` bytes into the run. */
typedef struct {
    int kind;
    int64_t run, at, value;
} lt_problem;

enum { LT_STOP = 1, LT_LEAVE = 2 }; /* LEAVE: a handler forked and this is the child, where nothing is in flight */

typedef struct {
    lt_runs runs;
    lt_sink sink;
    int drop;
    int (*interrupted)(void *); /* asked now and then; LT_STOP: wait for what is in flight and return; LT_LEAVE: return */
    void *token;
    int64_t asked;   /* clock of the last question */
    atomic_int stop; /* nonzero: start nothing new; another thread may say so */
    int64_t cached;  /* runs found in the page cache */
    lt_problem problem;
} lt_call;

static inline int32_t lt_fd(const lt_runs *runs, int64_t run) { return runs->fds[runs->one_fd ? 0 : run]; }
static inline int32_t lt_direct(const lt_runs *runs, int64_t run) { return runs->direct[runs->one_fd ? 0 : run]; }
static inline int64_t lt_length(const lt_runs *runs, int64_t run) { return runs->lengths[runs->one_length ? 0 : run]; }

/* The run of the problem noted so far; INT64_MAX: none. */
static inline int64_t lt_worst(const lt_call *call) { return call->problem.kind == LT_FINE ? INT64_MAX : call->problem.run; }

/* deliver.c */
int64_t lt_now(void); /* nanoseconds of the monotonic clock */
void lt_call_begin(lt_call *call);
void lt_note(lt_call *call, int kind, int64_t run, int64_t at, int64_t value);
int lt_asks_to_stop(lt_call *call, int now);
void lt_deliver(lt_call *call, int64_t run, int64_t at, const unsigned char *bytes, int64_t length);
void lt_deliver_mapped(lt_call *call, const unsigned char *base, int64_t size);
int64_t lt_item(int source);

/* widen.c: count tokens to x and as many to y; either may be NULL. Returns nonzero if an id is refused. */
int lt_widen(int source, int wide, const void *from, int64_t count, void *x, void *y, uint64_t limit);
int64_t lt_first_refused(int source, int wide, const void *from, int64_t count, uint64_t limit, int64_t *id);

/* documents.c: note where sink->mark stands among these tokens, the first of which is token `token` of the sink. */
void lt_mark(const lt_sink *sink, int64_t token, const unsigned char *tokens, int64_t count);

/* permute.c: numbers mapped in place; returns the index of the first one that is not below n, or -1. */
int64_t lt_permute(uint64_t *numbers, int64_t count, uint64_t n, const uint64_t *constants, int rounds,
                   const uint64_t *tweaks, int inverted);

/* located.c: extents of files laid end to end. Extent i reaches up to logical byte ends[i] and lies in file which[i] at
 * offset logical + shift[i]. */
typedef struct {
    int64_t extents;
    const int64_t *ends, *shift;
    const int32_t *which;
    int64_t count; /* of files */
    const int64_t *sizes, *changed;
    const int32_t *fds; /* -1: not open */
} lt_files;

/* 0 where a run crosses into another extent, or a file is not open or, if they are looked at, no longer what it was. */
int lt_locate(const lt_files *files, const int64_t *numbers, int64_t count, int64_t stride, const int64_t *lengths,
              int one_length, int32_t *fds, int64_t *offsets, int look);

/* rows.c: `length` bytes from each of `offsets` of what was read to row places[i] of `into`, which has room for `room` of
 * them; places NULL: one after the other. -1, or the first that lies outside, where it stopped. */
int64_t lt_copy_rows(const unsigned char *from, int64_t size, const int64_t *offsets, int64_t count, int64_t length,
                     unsigned char *into, const int64_t *places, int64_t room);

/* available.c. unavailable: an empty string, or why not. forbidden: the same without trying. refusal: an errno in words. */
const char *lt_unavailable(int way);
const char *lt_forbidden(int way);
const char *lt_refusal(int way, int error);

/* mapping.c: a read-only mapping of a file's first bytes; `shifted` away from the file's own alignment. 0 or errno. */
typedef struct {
    unsigned char *at;
    int64_t size;
} lt_mapping;

int lt_map(lt_mapping *to, int fd, int64_t size, int shifted, int scattered);
int lt_take_back(const lt_mapping *mapping, int64_t first, int64_t length);
void lt_unmap(lt_mapping *mapping);

#endif
