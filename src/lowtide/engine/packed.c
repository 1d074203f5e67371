/* Packed rows: which runs of bytes make a batch of them, and what is written over the tokens once they are there.
 *
 * Everything about a batch follows from the sizes of its pieces, so one walk over them gives the reads, where
 * runs begin and where documents end. Tables are mapped files that anybody may have damaged: every number of theirs is
 * checked before it is used, and what does not fit is left to the twin, which says what is wrong. Rows lie anywhere in
 * tables larger than the caches, so those of the next rows are fetched while one is walked: 3 microseconds per batch of
 * 64 instead of 17. */
#include "documents.h"

#define SOON 16 /* rows from now that the table of rows is fetched for, and half of it for the tables of pieces */

static int64_t size_at(const lt_packing *from, int64_t piece) {
    return from->wide_sizes ? ((const uint32_t *)from->sizes)[piece] : ((const uint16_t *)from->sizes)[piece];
}

/* The last group that begins at or before the row. Halves are chosen without a branch: rows lie anywhere, so each would
 * be guessed wrongly every other time. */
static int64_t group_of(const lt_packing *from, int64_t row) {
    int64_t low = 0;
    for (int64_t left = from->groups; left > 1; left -= left / 2) {
        low += from->row_bounds[low + left / 2] <= row ? left / 2 : 0;
    }
    return low;
}

static int add_read(lt_packed *to, int64_t start, int64_t tokens, int64_t item) {
    if (to->reads >= to->room) return 0;
    to->offsets[to->reads] = start * item, to->lengths[to->reads] = tokens * item;
    to->reads++;
    return 1;
}

static int add_run(lt_packed *to, int64_t begin, int64_t last, int is_padding, int closes) {
    if (to->runs >= to->room) return 0;
    to->begins[to->runs] = begin, to->padding[to->runs] = (uint8_t)is_padding;
    to->runs++;
    to->padded |= is_padding;
    if (closes) to->closing[to->closed++] = last - 1; /* never more than runs */
    return 1;
}

/* A row's pieces: `many` from `piece` on, in a group whose first token is `first`. */
typedef struct {
    int64_t piece, many, first;
} pieces_of_row;

/* piece -1: the tables make no sense. */
static pieces_of_row pieces_of(const lt_packing *from, int64_t row) {
    pieces_of_row found = {.piece = -1};
    if (row < 0 || row >= from->rows_count) return found;
    int64_t group = group_of(from, row), before = from->piece_bounds[group];
    found.first = from->first[group];
    if (before < 0 || before > from->pieces || found.first < 0 || found.first > from->there) return found;
    uint32_t begins = from->rows[row]; /* the low half of a count, as it may wrap */
    found.many = (uint32_t)(from->rows[row + 1] - begins);
    int64_t piece = before + (uint32_t)(begins - (uint32_t)before);
    if (found.many && piece <= from->pieces - found.many) found.piece = piece;
    return found;
}

static int add_row(lt_packed *to, const lt_packing *from, pieces_of_row of, int64_t base) {
    int64_t piece = of.piece, inside = 0;
    if (piece < 0) return 0;
    for (int64_t end = piece + of.many; piece < end; piece++) {
        int64_t size = size_at(from, piece), goes_on = size > from->length, start = from->starts[piece] + of.first;
        size -= goes_on;
        if (size < 1 || size > from->length - inside || start > from->there - size) return 0;
        if (!add_run(to, base + inside, base + inside + size, 0, !goes_on)) return 0;
        inside += size;
        int64_t more = 0;
        if (piece + 1 == end) { /* the row's rest, and one token more, be it the next of its document or any */
            more = from->length + 1 - inside;
            if (more > from->there - start - size) more = from->there - start - size;
        }
        if (!add_read(to, start, size + more, from->item)) return 0;
        if (piece + 1 < end) continue;
        /* At the corpus's very end there is nothing behind: its first tokens do as well. */
        for (int64_t left = from->length + 1 - inside - more; left > 0; left -= from->there) {
            if (!add_read(to, 0, left < from->there ? left : from->there, from->item)) return 0;
        }
    }
    return inside == from->length || add_run(to, base + inside, base + from->length, 1, 0);
}

int lt_packed_plan(lt_packed *to, const lt_packing *from, const int64_t *rows, int64_t count) {
    pieces_of_row found[SOON / 2];
    for (int64_t i = -SOON; i < count; i++) {
        int64_t far = i + SOON, near = i + SOON / 2;
        if (far < count && rows[far] >= 0 && rows[far] < from->rows_count) __builtin_prefetch(&from->rows[rows[far]]);
        if (i >= 0 && !add_row(to, from, found[i % (SOON / 2)], i * from->length)) return 0;
        if (near < 0 || near >= count) continue;
        pieces_of_row *next = &found[near % (SOON / 2)];
        *next = pieces_of(from, rows[near]);
        if (next->piece < 0) continue; /* refused when it is its turn */
        __builtin_prefetch(&from->starts[next->piece]);
        __builtin_prefetch((const unsigned char *)from->sizes + next->piece * (from->wide_sizes ? 4 : 2));
    }
    return 1;
}

#define CLOSE(NAME, TOKEN)                                                                                             \
    static int64_t close_##NAME(TOKEN *x, TOKEN *y, int64_t size, const lt_packed *runs, TOKEN pad, const int64_t *eot) { \
        int64_t wrong = -1;                                                                                            \
        for (int64_t i = 0; i < runs->closed; i++) {                                                                   \
            int64_t at = runs->closing[i];                                                                             \
            if (eot && x[at] != (TOKEN)*eot && wrong < 0) wrong = i;                                                   \
            y[at] = pad;                                                                                               \
        }                                                                                                              \
        for (int64_t run = 0; runs->padded && run < runs->runs; run++) {                                               \
            int64_t last = run + 1 < runs->runs ? runs->begins[run + 1] : size;                                        \
            for (int64_t i = runs->begins[run]; runs->padding[run] && i < last; i++) x[i] = y[i] = pad;                \
        }                                                                                                              \
        return wrong;                                                                                                  \
    }

CLOSE(u8, uint8_t)
CLOSE(u16, uint16_t)
CLOSE(u32, uint32_t)
CLOSE(u64, uint64_t)

int64_t lt_packed_close(void *x, void *y, int wide, int64_t size, const lt_packed *runs, int64_t pad, const int64_t *eot) {
    if (wide == 1) return close_u8(x, y, size, runs, (uint8_t)pad, eot);
    if (wide == 2) return close_u16(x, y, size, runs, (uint16_t)pad, eot);
    if (wide == 4) return close_u32(x, y, size, runs, (uint32_t)pad, eot);
    return close_u64(x, y, size, runs, (uint64_t)pad, eot);
}
