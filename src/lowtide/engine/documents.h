/* What documents.c writes and where; nothing here knows Python. */
#ifndef LOWTIDE_DOCUMENTS_H
#define LOWTIDE_DOCUMENTS_H

#include "core.h"

/* Planes of rows x length tokens, and the bounds of runs, of which there is room for room + 1. The rest is counted. */
typedef struct {
    int32_t *positions, *ids, *bounds;
    uint8_t *mask;
    int64_t rows, length, room;
    int64_t runs, longest;
    int32_t documents;
} lt_docs;

/* Runs by an id in x: the last token of a document or, with `begins`, the first. The longest run; -1: no room. */
int64_t lt_docs_marked(lt_docs *to, const void *x, const void *y, int wide, int64_t id, int begins);

/* The same from where the id stands among rows of length + 1 tokens, ascending, as lt_mark noted it. */
int64_t lt_docs_noted(lt_docs *to, const int64_t *marks, int64_t count, int begins);

/* Runs by where they begin, ascending from 0; `closing`: last tokens of documents. The longest run; -1: no room. */
int64_t lt_docs_given(lt_docs *to, const int64_t *begins, const uint8_t *padding, int64_t runs, const int64_t *closing,
                      int64_t count);

/* Where the id stands among tokens [*from, count): as many as there is room for; *from is where to go on. */
int64_t lt_find_ids(int source, const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t *found, int64_t room);

/* A packing: tables that are mapped, and groups (row_bounds and piece_bounds have groups + 1 entries). */
typedef struct {
    const uint32_t *rows, *starts;
    const void *sizes;
    int wide_sizes; /* 4 bytes each instead of 2 */
    int64_t rows_count, pieces;
    const int64_t *row_bounds, *piece_bounds, *first;
    int64_t groups;
    int64_t length, item, there; /* tokens of a row, bytes of a token, tokens of the corpus */
} lt_packing;

/* What a batch of packed rows is read from, and where its runs begin and documents end; `room` for each. */
typedef struct {
    int64_t *offsets, *lengths, *begins, *closing;
    uint8_t *padding;
    int64_t room, reads, runs, closed;
    int padded;
} lt_packed;

/* packed.c: 0 where the tables make no sense or there is no room. */
int lt_packed_plan(lt_packed *to, const lt_packing *from, const int64_t *rows, int64_t count);

/* Padding over what was read too much, and in y behind documents. The first of `closing` that is not *eot, or -1. */
int64_t lt_packed_close(void *x, void *y, int wide, int64_t size, const lt_packed *runs, int64_t pad, const int64_t *eot);

#endif
