/* Documents of a block of text, joined: the part of preparing that meets every byte before the tokenizer does. Knows nothing of Python. */
#ifndef LOWTIDE_TEXTS_H
#define LOWTIDE_TEXTS_H

#include <stdint.h>

typedef struct {
    const uint8_t *at;
    int64_t size;
} lt_bytes;

typedef struct {
    uint8_t *out; /* room for `lt_joined_room` bytes */
    int64_t size, documents, empty;
} lt_joined;

int64_t lt_joined_room(lt_bytes block, lt_bytes between, lt_bytes end);

/* Both write every document that is not empty, followed by `end`. 0: this block needs a closer look. */
int lt_join_lines(lt_bytes block, lt_bytes between, lt_bytes end, lt_joined *to);
int lt_join_json(lt_bytes block, lt_bytes key, lt_bytes end, lt_joined *to);

/* Where whole units of a JSON string end (bytes and escapes, no quote), which begin at `first`. */
int64_t lt_string_units(lt_bytes text, int64_t first);

/* Code points of `count` ranges (first, last), which ascend: how many, and where the first `most` begin. -1: not UTF-8. */
int64_t lt_find_code_points(lt_bytes text, const uint32_t *ranges, int64_t count, int64_t *places, int64_t most);

/* The first place from `mark` on, before `end`, where a document may be cut between words (prepare/inputs/cuts.py); -1: none. */
int64_t lt_cut_after(lt_bytes text, int64_t mark, int64_t end);

#endif
