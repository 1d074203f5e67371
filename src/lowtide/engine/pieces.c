/* Missing runs as pieces that fit a slot, and what a finished read means for its piece. */
#include "queue.h"

#include <errno.h>

/* The next piece, or 0. Pieces come in the order of runs: once run r has failed, every run before it has been begun,
 * and nothing after it needs to be. */
int lt_pieces_next(lt_pieces *pieces, lt_slot *slot) {
    lt_call *call = pieces->call;
    if (pieces->next >= pieces->count || atomic_load_explicit(&call->stop, memory_order_relaxed)) return 0;
    if (pieces->near) return lt_stretch_next(pieces, slot);
    const lt_miss *miss = &pieces->misses[pieces->next];
    if (miss->run > lt_worst(call)) return 0;
    int64_t length = lt_length(&call->runs, miss->run), at = miss->at + pieces->at, left = length - at;
    int64_t align = pieces->alignment, many = left < pieces->piece ? left : pieces->piece;
    slot->run = miss->run, slot->at = at, slot->length = many, slot->got = 0, slot->stuck = 0;
    slot->fd = align > 1 ? lt_direct(&call->runs, miss->run) : lt_fd(&call->runs, miss->run);
    int64_t offset = call->runs.offsets[miss->run] + at;
    slot->first = offset / align * align;
    slot->skip = offset - slot->first;
    slot->span = (slot->skip + many + align - 1) / align * align;
    pieces->at += many;
    if (many == left) pieces->next++, pieces->at = 0;
    return 1;
}

/* A read of the slot gave `result` bytes or -errno. AGAIN: read on from slot->got. */
int lt_slot_came(lt_pieces *pieces, lt_slot *slot, int64_t result) {
    lt_call *call = pieces->call;
    if (result == -EINTR || result == -EAGAIN) return LT_SLOT_AGAIN;
    int64_t wanted = slot->skip + slot->length, reached = slot->got + (result > 0 ? result : 0);
    if (result >= 0 && reached >= wanted) {
        if (pieces->near) lt_stretch_came(pieces, slot);
        else lt_deliver(call, slot->run, slot->at, slot->memory + slot->skip, slot->length);
        return LT_SLOT_DONE;
    }
    /* A short direct read goes on from the last aligned byte it reached; twice none: the file ends there. */
    int64_t from = reached / pieces->alignment * pieces->alignment, gained = from > slot->got;
    if (result > 0 && (gained || !slot->stuck)) {
        slot->stuck = !gained;
        slot->got = from;
        if (atomic_load_explicit(&call->stop, memory_order_relaxed) || slot->run > lt_worst(call)) return LT_SLOT_DONE;
        return LT_SLOT_AGAIN;
    }
    if (pieces->near) { /* which of its runs failed is found by reading them alone */
        pieces->failed = 1, pieces->next = pieces->count;
        return LT_SLOT_DONE;
    }
    int64_t have = reached > slot->skip ? reached - slot->skip : 0;
    int64_t item = call->sink.into ? 1 : lt_item(call->sink.source);
    if (!call->sink.into && have >= item) lt_deliver(call, slot->run, slot->at, slot->memory + slot->skip, have / item * item);
    lt_note(call, LT_READ_FAILED, slot->run, slot->at + have, result < 0 ? -result : 0);
    return LT_SLOT_DONE;
}
