/* Documents of a batch: which run every token belongs to, written in one pass beside x and y; and ids found in tokens.
 *
 * A run is written when its end is known, so every plane is touched once and in order. Ids are looked for in groups of
 * two cache lines: most have none. Loops are plain, or over the compiler's own vectors, and compiled twice where the
 * processor may have registers of 256 bits: planes take 7 microseconds per 65,536 tokens instead of 16. */
#include "documents.h"

#include "cpu.h"

#include <string.h>

static int add_bound(lt_docs *to, int64_t first, int64_t last) {
    if (to->runs >= to->room) return 0;
    to->bounds[to->runs++] = (int32_t)first;
    if (last - first > to->longest) to->longest = last - first;
    return 1;
}

#define COUNT_UP(NAME, HOW)                                                                                            \
    HOW static void NAME(int32_t *restrict positions, int32_t *restrict ids, int32_t id, int32_t size) {               \
        for (int32_t i = 0; i < size; i++) positions[i] = i;                                                           \
        for (int32_t i = 0; i < size; i++) ids[i] = id;                                                                \
    }

COUNT_UP(count_up, )
#ifdef LT_X86
COUNT_UP(count_up_wider, __attribute__((target("avx2"))))
#endif

static int write_run(lt_docs *to, int64_t first, int64_t last, int closes) {
    if (!add_bound(to, first, last)) return 0;
    int32_t *positions = to->positions + first, *ids = to->ids + first, size = (int32_t)(last - first);
#ifdef LT_X86
    if (lt_cpu_has(LT_HAS_AVX2)) count_up_wider(positions, ids, to->documents++, size);
    else
#endif
        count_up(positions, ids, to->documents++, size);
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

/* Where the id stands among tokens [*from, count), plus `base`: as many as there is room for; *from is where to go on. */
typedef int64_t (*finder)(const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t base, int64_t *found, int64_t room);

#define VECTOR 32 /* bytes */
#define GROUP 4   /* vectors looked at together */
typedef uint64_t lt_quarters __attribute__((vector_size(VECTOR)));

/* Lanes that are all ones in the masks of a group of vectors become numbers: a token of `item` bytes is so many of them. */
static inline int64_t lanes_of(const lt_quarters *masks, int64_t item, int64_t base, int64_t *found) {
    const uint64_t ones = item == 8 ? ~UINT64_C(0) : (UINT64_C(1) << (8 * item % 64)) - 1;
    int64_t many = 0;
    for (int64_t word = 0; word < GROUP * VECTOR / 8; word++) {
        for (uint64_t left = masks[word / 4][word % 4]; left;) {
            int64_t lane = __builtin_ctzll(left) / (8 * item);
            left &= ~(ones << (8 * item * lane));
            found[many++] = base + word * (8 / item) + lane;
        }
    }
    return many;
}

#define FIND(NAME, TOKEN, HOW)                                                                                         \
    typedef TOKEN many_##NAME __attribute__((vector_size(VECTOR), aligned(1), may_alias));                             \
    typedef TOKEN any_##NAME __attribute__((aligned(1), may_alias));                                                   \
    HOW static int64_t NAME(const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t base,                \
                            int64_t *found, int64_t room) {                                                            \
        const any_##NAME *all = tokens;                                                                                \
        const int64_t item = sizeof(TOKEN), step = GROUP * VECTOR / item;                                              \
        const many_##NAME wanted = (many_##NAME){0} + (TOKEN)id;                                                       \
        int64_t many = 0, at = *from;                                                                                  \
        for (; count - at >= step && room - many >= step; at += step) {                                                \
            const many_##NAME *here = (const many_##NAME *)(all + at);                                                 \
            lt_quarters masks[GROUP], any = {0};                                                                       \
            for (int k = 0; k < GROUP; k++) any |= masks[k] = (lt_quarters)(here[k] == wanted);                        \
            if (any[0] | any[1] | any[2] | any[3]) many += lanes_of(masks, item, base + at, found + many);             \
        }                                                                                                              \
        for (; at < count && many < room; at++) {                                                                      \
            if (all[at] == (TOKEN)id) found[many++] = base + at;                                                       \
        }                                                                                                              \
        *from = at;                                                                                                    \
        return many;                                                                                                   \
    }

#define FINDERS(TABLE, SUFFIX, HOW)                                                                                    \
    FIND(find_u8##SUFFIX, uint8_t, HOW)                                                                                \
    FIND(find_u16##SUFFIX, uint16_t, HOW)                                                                              \
    FIND(find_u32##SUFFIX, uint32_t, HOW)                                                                              \
    FIND(find_i32##SUFFIX, int32_t, HOW)                                                                               \
    FIND(find_i64##SUFFIX, int64_t, HOW)                                                                               \
    static const finder TABLE[LT_SOURCES] = {find_u8##SUFFIX, find_u16##SUFFIX, find_u32##SUFFIX, find_i32##SUFFIX, find_i64##SUFFIX};

FINDERS(finders, , )
#ifdef LT_X86
FINDERS(wider_finders, _wider, __attribute__((target("avx2"))))
#endif

static int can_be(int source, int64_t id) {
    static const int64_t least[LT_SOURCES] = {0, 0, 0, INT32_MIN, INT64_MIN};
    static const int64_t most[LT_SOURCES] = {UINT8_MAX, UINT16_MAX, UINT32_MAX, INT32_MAX, INT64_MAX};
    return least[source] <= id && id <= most[source];
}

static finder finder_of(int source) {
#ifdef LT_X86
    if (lt_cpu_has(LT_HAS_AVX2)) return wider_finders[source];
#endif
    return finders[source];
}

int64_t lt_find_ids(int source, const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t *found, int64_t room) {
    if (can_be(source, id)) return finder_of(source)(tokens, from, count, id, 0, found, room);
    *from = count;
    return 0;
}

/* The first place of the id, or count. */
static int64_t next_of(int source, const void *tokens, int64_t from, int64_t count, int64_t id) {
    int64_t found;
    return lt_find_ids(source, tokens, &from, count, id, &found, 1) ? found : count;
}

int64_t lt_docs_marked(lt_docs *to, const void *x, const void *y, int wide, int64_t id, int begins) {
    int source = wide == 8 ? LT_INT64 : LT_INT32;
    int64_t length = to->length;
    for (int64_t row = 0; row < to->rows; row++) {
        const unsigned char *tokens = (const unsigned char *)x + row * length * wide;
        int64_t base = row * length, first = 0;
        /* A mark at a row's beginning ends nothing in this row. */
        for (int64_t at = next_of(source, tokens, begins, length, id); at < length; at = next_of(source, tokens, at + 1, length, id)) {
            int64_t last = begins ? at : at + 1;
            if (!write_run(to, base + first, base + last, 1)) return -1;
            first = last;
        }
        if (first == length) continue;
        int closes = begins && next_of(source, (const unsigned char *)y + (base + length - 1) * wide, 0, 1, id) == 0;
        if (!write_run(to, base + first, base + length, closes)) return -1;
    }
    return finish(to);
}

void lt_mark(const lt_sink *sink, int64_t token, const unsigned char *tokens, int64_t count) {
    if (!can_be(sink->source, sink->mark)) return;
    uint64_t used = (uint64_t)sink->marks[0], room = (uint64_t)sink->marks_room; /* somebody else may write there: never trusted */
    if (used > room) return; /* too many already */
    int64_t from = 0, many = finder_of(sink->source)(tokens, &from, count, sink->mark, token, sink->marks + 1 + used, (int64_t)(room - used));
    sink->marks[0] = from < count ? sink->marks_room + 1 : (int64_t)used + many;
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
