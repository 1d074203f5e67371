/* Documents of a batch: which run every token belongs to, written in one pass beside x and y; and ids found in tokens.
 *
 * A run is written when its end is known, so every plane is touched once and in order. Ids are looked for in groups of
 * two cache lines: most have none. Loops are written twice where the processor may have registers of 256 bits. Planes
 * cost about what filling that much memory costs: 7 microseconds per 65,536 tokens. */
#include "documents.h"

#include "cpu.h"

#include <string.h>

static int add_bound(lt_docs *to, int64_t first, int64_t last) {
    if (to->runs >= to->room) return 0;
    to->bounds[to->runs++] = (int32_t)first;
    if (last - first > to->longest) to->longest = last - first;
    return 1;
}

#define STEP 16 /* tokens written together */
typedef int32_t eight __attribute__((vector_size(32), aligned(4), may_alias));

/* A run in whole steps: what is written too much belongs to the next run, which comes later. Ends of runs are anywhere,
 * and a loop that stopped at each of them would be guessed wrongly at each. */
#define COUNT_UP(NAME, HOW)                                                                                            \
    HOW static void NAME(int32_t *positions, int32_t *ids, uint8_t *mask, int32_t id, int32_t size) {                  \
        eight low = {0, 1, 2, 3, 4, 5, 6, 7}, high = low + 8;                                                          \
        const eight same = {id, id, id, id, id, id, id, id};                                                           \
        for (int32_t at = 0; at < size; at += STEP, low += STEP, high += STEP) {                                       \
            eight *here = (eight *)(positions + at), *there = (eight *)(ids + at);                                     \
            here[0] = low, here[1] = high, there[0] = there[1] = same;                                                 \
            memset(mask + at, 1, STEP);                                                                                \
        }                                                                                                              \
    }

COUNT_UP(count_up, )
#ifdef LT_X86
#define WIDER __attribute__((target("avx2")))
COUNT_UP(count_up_wider, WIDER)
#endif

static int write_run(lt_docs *to, int64_t first, int64_t last, int closes) {
    if (!add_bound(to, first, last)) return 0;
    int32_t id = to->documents++, size = (int32_t)(last - first), all = (int32_t)(to->rows * to->length - first);
    int32_t *positions = to->positions + first, *ids = to->ids + first;
    uint8_t *mask = to->mask + first;
    /* Behind the last step that fits is nothing of ours. */
    int32_t whole = (size + STEP - 1) / STEP * STEP <= all ? size : size / STEP * STEP;
#ifdef LT_X86
    if (lt_cpu_has(LT_HAS_AVX2)) count_up_wider(positions, ids, mask, id, whole);
    else
#endif
        count_up(positions, ids, mask, id, whole);
    for (int32_t i = whole; i < size; i++) positions[i] = i, ids[i] = id, mask[i] = 1;
    if (closes) mask[size - 1] = 0;
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

#define GROUP 128 /* bytes looked at together */

/* What is left of any group, and everything where there are no vectors: one token after the other. */
#define ONE_BY_ONE(TOKEN, UPTO)                                                                                        \
    for (; at < (UPTO) && many < room; at++) {                                                                         \
        if (all[at] == (TOKEN)id) found[many++] = base + at;                                                           \
    }

#define FIND(NAME, TOKEN)                                                                                              \
    typedef TOKEN any_##NAME __attribute__((aligned(1), may_alias));                                                   \
    static int64_t NAME(const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t base, int64_t *found,    \
                        int64_t room) {                                                                                \
        const any_##NAME *all = tokens;                                                                                \
        const int64_t step = GROUP / sizeof(TOKEN);                                                                    \
        int64_t many = 0, at = *from;                                                                                  \
        while (count - at >= step && many < room) {                                                                    \
            TOKEN any = 0; /* a loop that compilers vectorise */                                                       \
            for (int64_t k = 0; k < step; k++) any |= (TOKEN)(all[at + k] == (TOKEN)id);                               \
            int64_t end = at + step;                                                                                   \
            if (!any) at = end;                                                                                        \
            ONE_BY_ONE(TOKEN, end)                                                                                     \
        }                                                                                                              \
        ONE_BY_ONE(TOKEN, count)                                                                                       \
        *from = at;                                                                                                    \
        return many;                                                                                                   \
    }

FIND(find_u8, uint8_t)
FIND(find_u16, uint16_t)
FIND(find_u32, uint32_t)
FIND(find_i32, int32_t)
FIND(find_i64, int64_t)
static const finder finders[LT_SOURCES] = {find_u8, find_u16, find_u32, find_i32, find_i64};

#ifdef LT_X86
#include <immintrin.h>

/* `first`: the bits of tokens' first bytes among 32. */
#define FIND_WIDER(NAME, TOKEN, SET, EQUAL, first)                                                                     \
    typedef TOKEN any_##NAME __attribute__((aligned(1), may_alias));                                                   \
    WIDER static int64_t NAME(const void *tokens, int64_t *from, int64_t count, int64_t id, int64_t base,              \
                              int64_t *found, int64_t room) {                                                          \
        const any_##NAME *all = tokens;                                                                                \
        const int64_t item = sizeof(TOKEN), step = GROUP / item;                                                       \
        const __m256i wanted = SET;                                                                                    \
        int64_t many = 0, at = *from;                                                                                  \
        for (; count - at >= step && room - many >= step; at += step) {                                                \
            const __m256i *here = (const __m256i *)(const void *)(all + at);                                           \
            __m256i a = EQUAL(_mm256_loadu_si256(here), wanted), b = EQUAL(_mm256_loadu_si256(here + 1), wanted);      \
            __m256i c = EQUAL(_mm256_loadu_si256(here + 2), wanted), d = EQUAL(_mm256_loadu_si256(here + 3), wanted);  \
            __m256i any = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));                               \
            if (_mm256_testz_si256(any, any)) continue;                                                                \
            uint64_t low = (uint32_t)_mm256_movemask_epi8(a) & first, high = (uint32_t)_mm256_movemask_epi8(c) & first;\
            low |= (uint64_t)((uint32_t)_mm256_movemask_epi8(b) & first) << 32;                                        \
            high |= (uint64_t)((uint32_t)_mm256_movemask_epi8(d) & first) << 32;                                       \
            do { /* mostly once, and nothing branches on the half it is in, which could not be guessed */              \
                int64_t behind = low == 0;                                                                             \
                uint64_t left = behind ? high : low;                                                                   \
                found[many++] = base + at + (64 * behind + __builtin_ctzll(left)) / item;                              \
                high = behind ? left & (left - 1) : high, low = behind ? 0 : left & (left - 1);                        \
            } while (low | high);                                                                                      \
        }                                                                                                              \
        ONE_BY_ONE(TOKEN, count)                                                                                       \
        *from = at;                                                                                                    \
        return many;                                                                                                   \
    }

FIND_WIDER(wider_u8, uint8_t, _mm256_set1_epi8((char)id), _mm256_cmpeq_epi8, 0xffffffffu)
FIND_WIDER(wider_u16, uint16_t, _mm256_set1_epi16((short)id), _mm256_cmpeq_epi16, 0x55555555u)
FIND_WIDER(wider_u32, uint32_t, _mm256_set1_epi32((int)id), _mm256_cmpeq_epi32, 0x11111111u)
FIND_WIDER(wider_i32, int32_t, _mm256_set1_epi32((int)id), _mm256_cmpeq_epi32, 0x11111111u)
FIND_WIDER(wider_i64, int64_t, _mm256_set1_epi64x(id), _mm256_cmpeq_epi64, 0x01010101u)
static const finder wider_finders[LT_SOURCES] = {wider_u8, wider_u16, wider_u32, wider_i32, wider_i64};
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
