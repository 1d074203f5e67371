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

/* Runs by where they begin, ascending from 0; `closing`: last tokens of documents. The longest run; -1: no room. */
int64_t lt_docs_given(lt_docs *to, const int64_t *begins, const uint8_t *padding, int64_t runs, const int64_t *closing,
                      int64_t count);

/* Where the id stands among tokens [*from, count): as many as there is room for; *from is where to go on. */
int64_t lt_find_ids(int source, const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t *found, int64_t room);

#endif
