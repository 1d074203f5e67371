/* Where bytes go once they are in memory, and how problems are kept. */
#include "core.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* A Python signal handler runs at most this late. Asking takes the interpreter's lock, so not more often. */
#define ASK_EVERY 50000000 /* nanoseconds */

int64_t lt_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void lt_call_begin(lt_call *call) {
    memset(call, 0, sizeof *call);
    atomic_init(&call->stop, 0);
    call->asked = lt_now();
}

void lt_note(lt_call *call, int kind, int64_t run, int64_t at, int64_t value) {
    lt_problem *old = &call->problem;
    /* Pieces of a run finish in any order: the earliest byte wins, so that every way reports the same. */
    if (old->kind == LT_FINE || run < old->run || (run == old->run && at < old->at)) *old = (lt_problem){kind, run, at, value};
}

int lt_asks_to_stop(lt_call *call, int at_once) {
    if (atomic_load_explicit(&call->stop, memory_order_relaxed)) return 1;
    if (call->interrupted == NULL) return 0;
    int64_t time = lt_now();
    if (!at_once && time - call->asked < ASK_EVERY) return 0;
    call->asked = time;
    int answer = call->interrupted(call->token);
    if (answer) atomic_store(&call->stop, answer);
    return answer;
}

int64_t lt_item(int source) {
    static const int64_t items[LT_SOURCES] = {1, 2, 4, 4, 8};
    return items[source];
}

/* Bytes of a run from byte `at` on, and perhaps of runs behind it that follow in its row. */
void lt_deliver(lt_call *call, int64_t run, int64_t at, const unsigned char *bytes, int64_t length) {
    const lt_sink *sink = &call->sink;
    if (sink->into) {
        unsigned char *place = sink->into + sink->targets[run] + at;
        if (place != bytes) memcpy(place, bytes, (size_t)length);
        return;
    }
    int64_t item = lt_item(sink->source), wide = sink->wide, columns = sink->length + 1;
    int64_t token = sink->targets[run] + at / item, count = length / item;
    if (sink->x == NULL) {
        lt_mark(sink, token, bytes, count);
        return;
    }
    int64_t row = token / columns, first = token % columns, last = first + count;
    unsigned char *x = (unsigned char *)sink->x + row * sink->length * wide;
    unsigned char *y = (unsigned char *)sink->y + row * sink->length * wide;
    /* The usual case, a whole window, is one pass over columns 0 .. length-1 that feeds both. Its last token goes to
     * y alone, and a piece that begins later also owes y its own first token. */
    int64_t inner = last > sink->length ? sink->length : last;
    int refused = 0;
    if (first > 0) refused |= lt_widen(sink->source, sink->wide, bytes, 1, NULL, y + (first - 1) * wide, sink->limit);
    if (inner > first) {
        int64_t both = inner - first;
        int whole = last > inner; /* the token after the last column of x is here too */
        if (whole) {
            refused |= lt_widen(sink->source, sink->wide, bytes, both, x + first * wide, y + first * wide, sink->limit);
        } else {
            refused |= lt_widen(sink->source, sink->wide, bytes, both - 1, x + first * wide, y + first * wide, sink->limit);
            refused |= lt_widen(sink->source, sink->wide, bytes + (both - 1) * item, 1, x + (inner - 1) * wide, NULL, sink->limit);
        }
    }
    if (sink->marks) lt_mark(sink, token, bytes, count);
    if (refused) {
        int64_t id = 0, index = lt_first_refused(sink->source, sink->wide, bytes, count, sink->limit, &id);
        int64_t place = at + index * item;
        for (; place >= lt_length(&call->runs, run); run++) place -= lt_length(&call->runs, run);
        lt_note(call, LT_BAD_TOKEN, run, place, id);
    }
}

/* Runs lie anywhere in a mapping, which the processor cannot foresee: each would begin with waiting for memory. So cache
 * lines are asked for before their turn, those of about `FETCH` bytes behind the run at hand; of a longer run only its
 * beginning, as the processor foresees the rest. Asking for a page that is not mapped does nothing. Rows of 2 KiB took 7.7
 * instead of 11.1 microseconds per 64, windows of 1,025 tokens 24 instead of 42 (AMD Zen 5); 4 KiB ahead 9.7 and 25. */
#define FETCH 8192
#define LINE 64

static void fetch(const unsigned char *base, int64_t size, int64_t offset, int64_t length) {
    if (length > FETCH) length = FETCH;
    if (offset > size - length) return;
    for (int64_t at = offset / LINE * LINE; at < offset + length; at += LINE) __builtin_prefetch(base + at);
}

void lt_deliver_mapped(lt_call *call, const unsigned char *base, int64_t size) {
    const lt_runs *runs = &call->runs;
    int64_t next = 1, ahead = 0; /* the first run that was not asked for, and bytes between it and the run at hand */
    for (int64_t run = 0; run < runs->count && lt_worst(call) == INT64_MAX; run++) {
        int64_t offset = runs->offsets[run], length = lt_length(runs, run);
        if (length > size || offset > size - length) {
            lt_note(call, LT_READ_FAILED, run, offset < size ? size - offset : 0, 0);
            return;
        }
        if (run > 0) ahead -= length;
        for (; next < runs->count && ahead < FETCH; next++) {
            fetch(base, size, runs->offsets[next], lt_length(runs, next));
            ahead += lt_length(runs, next);
        }
        lt_deliver(call, run, 0, base + offset, length);
        if ((run & 255) == 255 && lt_asks_to_stop(call, 0)) return;
    }
}
