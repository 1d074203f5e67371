/* Documents of a batch: which run every token belongs to, written in one pass beside x and y; and ids found in tokens.
 *
 * One idea: a run is written when its end is known, so every plane is touched once and in order, while the row it
 * belongs to is still in the cache. Ids are looked for in whole cache lines at a time: most have none. */
#include "documents.h"

#include <string.h>

static int add_bound(lt_docs *to, int64_t first, int64_t last) {
    if (to->runs >= to->room) return 0;
    to->bounds[to->runs++] = (int32_t)first;
    if (last - first > to->longest) to->longest = last - first;
    return 1;
}

static int write_run(lt_docs *to, int64_t first, int64_t last, int closes) {
    if (!add_bound(to, first, last)) return 0;
    int32_t *restrict positions = to->positions + first, *restrict ids = to->ids + first;
    int32_t id = to->documents++, size = (int32_t)(last - first);
    for (int32_t i = 0; i < size; i++) positions[i] = i;
    for (int32_t i = 0; i < size; i++) ids[i] = id;
    memset(to->mask + first, 1, (size_t)size);
    if (closes) to->mask[last - 1] = 0;
    return 1;
}

static int write_padding(lt_docs *to, int64_t first, int64_t last) {
    if (!add_bound(to, first, last)) return 0;
    memset(to->positions + first, 0, (size_t)(last - first) * sizeof *to->positions);
    memset(to->ids + first, 0xff, (size_t)(last - first) * sizeof *to->ids); /* -1 */
    memset(to->mask + first, 0, (size_t)(last - first));
    return 1;
}

static int64_t finish(lt_docs *to) {
    int32_t size = (int32_t)(to->rows * to->length);
    for (int64_t i = to->runs; i <= to->room; i++) to->bounds[i] = size;
    return to->longest;
}

/* Where the id stands first among tokens [from, count), or count. */
#ifdef __SSE2__
#include <emmintrin.h>
#define VECTORS 8 /* looked at together */

static inline __m128i equal(__m128i a, __m128i b, int item) {
    return item == 1 ? _mm_cmpeq_epi8(a, b) : item == 2 ? _mm_cmpeq_epi16(a, b) : _mm_cmpeq_epi32(a, b);
}

static inline __m128i pattern(int64_t id, int item) {
    if (item == 8) return _mm_set1_epi64x(id); /* compared in halves */
    return item == 1 ? _mm_set1_epi8((char)id) : item == 2 ? _mm_set1_epi16((short)id) : _mm_set1_epi32((int)id);
}

/* From *at on while there is no id in whole groups of vectors; where there is one, the place. Halves of 64 bits that
 * are equal by themselves (0 above every small id) are sorted out last. */
static inline int64_t skim(const unsigned char *tokens, int64_t *at, int64_t bytes, int64_t id, int item) {
    const __m128i wanted = pattern(id, item), low = _mm_set1_epi64x(item == 8 ? (int64_t)UINT32_MAX : -(int64_t)1);
    for (; *at + 16 * VECTORS <= bytes; *at += 16 * VECTORS) {
        const __m128i *here = (const __m128i *)(tokens + *at);
        __m128i any = _mm_setzero_si128();
        for (int k = 0; k < VECTORS; k++) any = _mm_or_si128(any, equal(_mm_loadu_si128(here + k), wanted, item));
        if (!_mm_movemask_epi8(_mm_and_si128(any, low))) continue;
        for (int k = 0; k < VECTORS; k++) {
            unsigned hits = (unsigned)_mm_movemask_epi8(equal(_mm_loadu_si128(here + k), wanted, item));
            if (item == 8) hits &= hits >> 4;
            if (item == 8) hits &= 0x0101;
            if (hits) return *at + 16 * k + __builtin_ctz(hits);
        }
    }
    return -1;
}
#else
static inline int64_t skim(const unsigned char *tokens, int64_t *at, int64_t bytes, int64_t id, int item) {
    (void)tokens, (void)at, (void)bytes, (void)id, (void)item;
    return -1;
}
#endif

#define SCAN(NAME, TOKEN)                                                                                              \
    typedef TOKEN any_##NAME __attribute__((aligned(1), may_alias));                                                   \
    static int64_t next_##NAME(const void *tokens, int64_t from, int64_t count, int64_t wanted) {                      \
        const any_##NAME *all = tokens;                                                                                \
        const int64_t item = sizeof(TOKEN);                                                                            \
        int64_t at = from * item, hit = skim(tokens, &at, count * item, wanted, sizeof(TOKEN));                        \
        if (hit >= 0) return hit / item;                                                                               \
        for (int64_t i = at / item; i < count; i++) {                                                                  \
            if (all[i] == (TOKEN)wanted) return i;                                                                     \
        }                                                                                                              \
        return count;                                                                                                  \
    }

SCAN(u8, uint8_t)
SCAN(u16, uint16_t)
SCAN(u32, uint32_t)
SCAN(i32, int32_t)
SCAN(i64, int64_t)

typedef int64_t (*scanner)(const void *, int64_t, int64_t, int64_t);
static const scanner scanners[LT_SOURCES] = {next_u8, next_u16, next_u32, next_i32, next_i64};

static int can_be(int source, int64_t id) {
    static const int64_t least[LT_SOURCES] = {0, 0, 0, INT32_MIN, INT64_MIN};
    static const int64_t most[LT_SOURCES] = {UINT8_MAX, UINT16_MAX, UINT32_MAX, INT32_MAX, INT64_MAX};
    return least[source] <= id && id <= most[source];
}

int64_t lt_find_ids(int source, const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t *found, int64_t room) {
    int64_t many = 0, at = can_be(source, id) ? *from : count;
    while (at < count && many < room) {
        at = scanners[source](tokens, at, count, id);
        if (at < count) found[many++] = at++;
    }
    *from = at;
    return many;
}

int64_t lt_docs_marked(lt_docs *to, const void *x, const void *y, int wide, int64_t id, int begins) {
    int source = wide == 8 ? LT_INT64 : LT_INT32, possible = can_be(source, id);
    scanner next = scanners[source];
    int64_t length = to->length;
    for (int64_t row = 0; row < to->rows; row++) {
        const unsigned char *tokens = (const unsigned char *)x + row * length * wide;
        int64_t base = row * length, first = 0;
        /* A mark at a row's beginning ends nothing in this row. */
        for (int64_t at = possible ? next(tokens, begins, length, id) : length; at < length; at = next(tokens, at + 1, length, id)) {
            int64_t last = begins ? at : at + 1;
            if (!write_run(to, base + first, base + last, 1)) return -1;
            first = last;
        }
        if (first == length) continue;
        int closes = begins && possible && next((const unsigned char *)y + (base + length - 1) * wide, 0, 1, id) == 0;
        if (!write_run(to, base + first, base + length, closes)) return -1;
    }
    return finish(to);
}

void lt_mark(const lt_sink *sink, int64_t token, const unsigned char *tokens, int64_t count) {
    if (!can_be(sink->source, sink->mark)) return;
    scanner next = scanners[sink->source];
    for (int64_t at = next(tokens, 0, count, sink->mark); at < count; at = next(tokens, at + 1, count, sink->mark)) {
        uint64_t slot = (uint64_t)sink->marks[0]++; /* somebody else may write there: never trusted */
        if (slot < (uint64_t)sink->marks_room) sink->marks[1 + slot] = token + at;
    }
}

int64_t lt_docs_noted(lt_docs *to, const int64_t *marks, int64_t count, int begins) {
    int64_t length = to->length, columns = length + 1, next = 0;
    for (int64_t row = 0; row < to->rows; row++) {
        int64_t base = row * length, first = 0;
        int closes = 0;
        for (; next < count && marks[next] < (row + 1) * columns; next++) {
            int64_t column = marks[next] - row * columns, last = begins ? column : column + 1;
            if (column == length) closes = begins; /* only in y: the next document begins behind this row */
            if (column == length || last == first) continue;
            if (!write_run(to, base + first, base + last, 1)) return -1;
            first = last;
        }
        if (first < length && !write_run(to, base + first, base + length, closes)) return -1;
    }
    return finish(to);
}

int64_t lt_docs_given(lt_docs *to, const int64_t *begins, const uint8_t *padding, int64_t runs, const int64_t *closing,
                      int64_t count) {
    int64_t size = to->rows * to->length;
    for (int64_t run = 0; run < runs; run++) {
        int64_t last = run + 1 < runs ? begins[run + 1] : size;
        int fits = padding && padding[run] ? write_padding(to, begins[run], last) : write_run(to, begins[run], last, 0);
        if (!fits) return -1;
    }
    for (int64_t i = 0; i < count; i++) to->mask[closing[i]] = 0;
    return finish(to);
}
