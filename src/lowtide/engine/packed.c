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

/* The last group that begins at or before the row. */
static int64_t group_of(const lt_packing *from, int64_t row) {
    int64_t low = 0, high = from->groups;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (from->row_bounds[middle] <= row) low = middle;
        else high = middle;
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

/* The first piece of a row, of *many, and the first token of its group; -1 where the tables make no sense. */
static int64_t first_piece(const lt_packing *from, int64_t row, int64_t *many, int64_t *first) {
    if (row < 0 || row >= from->rows_count) return -1;
    int64_t group = group_of(from, row), before = from->piece_bounds[group];
    *first = from->first[group];
    if (before < 0 || before > from->pieces || *first < 0 || *first > from->there) return -1;
    uint32_t begins = from->rows[row]; /* the low half of a count, as it may wrap */
    *many = (uint32_t)(from->rows[row + 1] - begins);
    int64_t piece = before + (uint32_t)(begins - (uint32_t)before);
    return *many == 0 || piece > from->pieces - *many ? -1 : piece;
}

static void fetch_ahead(const lt_packing *from, const int64_t *rows, int64_t at, int64_t count) {
    if (at + SOON < count && rows[at + SOON] >= 0 && rows[at + SOON] < from->rows_count) __builtin_prefetch(&from->rows[rows[at + SOON]]);
    if (at < -SOON / 2 || at + SOON / 2 >= count) return;
    int64_t many, first, piece = first_piece(from, rows[at + SOON / 2], &many, &first);
    if (piece < 0) return; /* found again when it is its turn */
    __builtin_prefetch(&from->starts[piece]);
    __builtin_prefetch((const unsigned char *)from->sizes + piece * (from->wide_sizes ? 4 : 2));
}

static int add_row(lt_packed *to, const lt_packing *from, int64_t row, int64_t base) {
    int64_t many, first, piece = first_piece(from, row, &many, &first), inside = 0;
    if (piece < 0) return 0;
    for (int64_t end = piece + many; piece < end; piece++) {
        int64_t size = size_at(from, piece), goes_on = size > from->length, start = from->starts[piece] + first;
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
    for (int64_t i = -SOON; i < count; i++) {
        fetch_ahead(from, rows, i, count);
        if (i >= 0 && !add_row(to, from, rows[i], i * from->length)) return 0;
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

CLOSE(i32, int32_t)
CLOSE(i64, int64_t)

int64_t lt_packed_close(void *x, void *y, int wide, int64_t size, const lt_packed *runs, int64_t pad, const int64_t *eot) {
    return wide == 8 ? close_i64(x, y, size, runs, pad, eot) : close_i32(x, y, size, runs, (int32_t)pad, eot);
}
