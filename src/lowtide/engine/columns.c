/* Sums, squares, least, most and NaN of columns, in one pass over rows.
 *
 * Eight neighbouring columns at a time are summed down a tile of rows that fits the cache, in registers: eight additions
 * that do not wait for each other. NaN cost nothing while there are none: only where a total has become NaN the tile is
 * summed again, looking at every number. Every column is added up in the order of its rows, by the same operations on
 * every machine, so equal rows give equal bits. */
#include "columns.h"
#include "cpu.h"

#include <math.h>
#include <string.h>

#define PANEL 4096  /* bytes of a row that are walked down together: wide rows are cut into panels of these */
#define TILE 131072 /* bytes of a tile: half of what a small second-level cache has */
#define BESIDE 8    /* columns at a time */

/* Rows may begin at any byte. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef uint8_t LOOSE any_u8;
typedef int8_t LOOSE any_i8;
typedef uint16_t LOOSE any_u16;
typedef int16_t LOOSE any_i16;
typedef uint32_t LOOSE any_u32;
typedef int32_t LOOSE any_i32;
typedef uint64_t LOOSE any_u64;
typedef int64_t LOOSE any_i64;
typedef float LOOSE any_f32;
typedef double LOOSE any_f64;

/* A half by its bits: put into the place of a float's, it is too small by 2^112, subnormal or not. */
static inline double half(uint16_t bits) {
    uint32_t word = (uint32_t)(bits & 0x7fff) << 13;
    float value;
    memcpy(&value, &word, 4);
    value *= 0x1p112f;
    if ((bits & 0x7c00) == 0x7c00) value = bits & 0x3ff ? NAN : INFINITY;
    return bits & 0x8000 ? -value : value;
}

#define PLAIN(NAME, FROM, DOUBLE)                                                                                      \
    static void plain_##NAME(const unsigned char *at, int64_t stride, int64_t rows, int wide, const lt_columns *to) { \
        for (int64_t row = 0; row < rows; row++, at += stride) {                                                       \
            const FROM *from = (const FROM *)at;                                                                       \
            for (int k = 0; k < wide; k++) {                                                                           \
                double value = DOUBLE(from[k]), apart = value - to->guess[k];                                              \
                if (value != value) {                                                                                  \
                    to->nan[k]++;                                                                                      \
                    continue;                                                                                          \
                }                                                                                                      \
                to->total[k] += apart;                                                                                 \
                to->squares[k] += apart * apart;                                                                       \
                to->low[k] = value < to->low[k] ? value : to->low[k];                                                  \
                to->high[k] = value > to->high[k] ? value : to->high[k];                                               \
            }                                                                                                          \
        }                                                                                                              \
    }

PLAIN(u8, any_u8, (double))
PLAIN(i8, any_i8, (double))
PLAIN(u16, any_u16, (double))
PLAIN(i16, any_i16, (double))
PLAIN(u32, any_u32, (double))
PLAIN(i32, any_i32, (double))
PLAIN(u64, any_u64, (double))
PLAIN(i64, any_i64, (double))
PLAIN(f16, any_u16, half)
PLAIN(f32, any_f32, (double))
PLAIN(f64, any_f64, (double))

typedef void (*plain)(const unsigned char *, int64_t, int64_t, int, const lt_columns *);
static const plain plains[LT_NUMBERS] = {plain_u8,  plain_i8,  plain_u16, plain_i16, plain_u32, plain_i32,
                                         plain_u64, plain_i64, plain_f16, plain_f32, plain_f64};
static const int64_t items[LT_NUMBERS] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8};

#ifdef LT_X86
#include <immintrin.h>
#define WIDER __attribute__((target("avx,avx2,f16c")))

/* Four numbers from memory, as doubles. */
WIDER static inline __m256d four_u8(const unsigned char *at) {
    int32_t word;
    memcpy(&word, at, 4);
    return _mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(word)));
}
WIDER static inline __m256d four_i8(const unsigned char *at) {
    int32_t word;
    memcpy(&word, at, 4);
    return _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(word)));
}
WIDER static inline __m256d four_u16(const unsigned char *at) {
    return _mm256_cvtepi32_pd(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
WIDER static inline __m256d four_i16(const unsigned char *at) {
    return _mm256_cvtepi32_pd(_mm_cvtepi16_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
WIDER static inline __m256d four_u32(const unsigned char *at) { /* as signed ones, 2^31 lower: exact */
    __m128i signed_ones = _mm_xor_si128(_mm_loadu_si128((const __m128i *)at), _mm_set1_epi32(INT32_MIN));
    return _mm256_add_pd(_mm256_cvtepi32_pd(signed_ones), _mm256_set1_pd(0x1p31));
}
WIDER static inline __m256d four_i32(const unsigned char *at) {
    return _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)at));
}
WIDER static inline __m256d four_u64(const unsigned char *at) {
    const any_u64 *from = (const any_u64 *)at;
    return _mm256_set_pd((double)from[3], (double)from[2], (double)from[1], (double)from[0]);
}
WIDER static inline __m256d four_i64(const unsigned char *at) {
    const any_i64 *from = (const any_i64 *)at;
    return _mm256_set_pd((double)from[3], (double)from[2], (double)from[1], (double)from[0]);
}
WIDER static inline __m256d four_f16(const unsigned char *at) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)at)));
}
WIDER static inline __m256d four_f32(const unsigned char *at) { return _mm256_cvtps_pd(_mm_loadu_ps((const float *)at)); }
WIDER static inline __m256d four_f64(const unsigned char *at) { return _mm256_loadu_pd((const double *)at); }

/* No fused multiply-add: it would round otherwise than the plain loop. min and max give the second where one is NaN. */
#define STEP(HALF, NAME, ITEM)                                                                                         \
    {                                                                                                                  \
        __m256d value = four_##NAME(at + 4 * HALF * ITEM), apart = _mm256_sub_pd(value, guess##HALF);                  \
        total##HALF = _mm256_add_pd(total##HALF, apart);                                                               \
        squares##HALF = _mm256_add_pd(squares##HALF, _mm256_mul_pd(apart, apart));                                     \
        low##HALF = _mm256_min_pd(value, low##HALF);                                                                   \
        high##HALF = _mm256_max_pd(value, high##HALF);                                                                 \
    }

#define CAREFUL_STEP(HALF, NAME, ITEM)                                                                                 \
    {                                                                                                                  \
        __m256d value = four_##NAME(at + 4 * HALF * ITEM), number = _mm256_cmp_pd(value, value, _CMP_ORD_Q);           \
        __m256d apart = _mm256_and_pd(_mm256_sub_pd(value, guess##HALF), number);                                      \
        missing##HALF = _mm256_add_epi64(missing##HALF, _mm256_andnot_si256(_mm256_castpd_si256(number), one));        \
        total##HALF = _mm256_add_pd(total##HALF, apart);                                                               \
        squares##HALF = _mm256_add_pd(squares##HALF, _mm256_mul_pd(apart, apart));                                     \
        low##HALF = _mm256_min_pd(value, low##HALF);                                                                   \
        high##HALF = _mm256_max_pd(value, high##HALF);                                                                 \
    }

/* 0, and nothing changed, where a total has become NaN or infinite: then every number has to be looked at. */
#define SUMS(NAME, ITEM, KIND, STEP_OF, BEFORE, REFUSED, AFTER)                                                        \
    WIDER static int KIND##_##NAME(const unsigned char *at, int64_t stride, int64_t rows, const lt_columns *to) {      \
        const __m256d guess0 = _mm256_loadu_pd(to->guess), guess1 = _mm256_loadu_pd(to->guess + 4);                    \
        __m256d total0 = _mm256_loadu_pd(to->total), total1 = _mm256_loadu_pd(to->total + 4);                          \
        __m256d squares0 = _mm256_loadu_pd(to->squares), squares1 = _mm256_loadu_pd(to->squares + 4);                  \
        __m256d low0 = _mm256_loadu_pd(to->low), low1 = _mm256_loadu_pd(to->low + 4);                                  \
        __m256d high0 = _mm256_loadu_pd(to->high), high1 = _mm256_loadu_pd(to->high + 4);                              \
        BEFORE                                                                                                         \
        const uintptr_t ahead = (uintptr_t)(rows * stride);                                                            \
        for (int64_t row = 0; row < rows; row++, at += stride) {                                                       \
            _mm_prefetch((const char *)((uintptr_t)at + ahead), _MM_HINT_T1); /* the next tile: rows apart, it is unforeseen */\
            STEP_OF(0, NAME, ITEM)                                                                                     \
            STEP_OF(1, NAME, ITEM)                                                                                     \
        }                                                                                                              \
        REFUSED                                                                                                        \
        _mm256_storeu_pd(to->total, total0), _mm256_storeu_pd(to->total + 4, total1);                                  \
        _mm256_storeu_pd(to->squares, squares0), _mm256_storeu_pd(to->squares + 4, squares1);                          \
        _mm256_storeu_pd(to->low, low0), _mm256_storeu_pd(to->low + 4, low1);                                          \
        _mm256_storeu_pd(to->high, high0), _mm256_storeu_pd(to->high + 4, high1);                                      \
        AFTER                                                                                                          \
        return 1;                                                                                                      \
    }

#define UNUSUAL /* infinity less infinity is NaN too */                                                                \
    __m256d usual0 = _mm256_sub_pd(total0, total0), usual1 = _mm256_sub_pd(total1, total1);                            \
    if (_mm256_movemask_pd(_mm256_cmp_pd(usual0, usual1, _CMP_UNORD_Q))) return 0;
#define COUNTERS                                                                                                       \
    const __m256i one = _mm256_set1_epi64x(1);                                                                         \
    __m256i missing0 = _mm256_loadu_si256((const __m256i *)to->nan), missing1 = _mm256_loadu_si256((const __m256i *)(to->nan + 4));
#define COUNTED _mm256_storeu_si256((__m256i *)to->nan, missing0), _mm256_storeu_si256((__m256i *)(to->nan + 4), missing1);

#define BOTH(NAME, ITEM)                                                                                               \
    SUMS(NAME, ITEM, quick, STEP, , UNUSUAL, )                                                                         \
    SUMS(NAME, ITEM, careful, CAREFUL_STEP, COUNTERS, , COUNTED)

SUMS(u8, 1, quick, STEP, , , )
SUMS(i8, 1, quick, STEP, , , )
SUMS(u16, 2, quick, STEP, , , )
SUMS(i16, 2, quick, STEP, , , )
SUMS(u32, 4, quick, STEP, , , )
SUMS(i32, 4, quick, STEP, , , )
SUMS(u64, 8, quick, STEP, , , )
SUMS(i64, 8, quick, STEP, , , )
BOTH(f16, 2)
BOTH(f32, 4)
BOTH(f64, 8)

typedef int (*vectors)(const unsigned char *, int64_t, int64_t, const lt_columns *);
static const vectors quicks[LT_NUMBERS] = {quick_u8,  quick_i8,  quick_u16, quick_i16, quick_u32, quick_i32,
                                           quick_u64, quick_i64, quick_f16, quick_f32, quick_f64};
static const vectors carefuls[] = {careful_f16, careful_f32, careful_f64};

static int add_eight(const unsigned char *at, int64_t stride, int64_t rows, const lt_columns *to) {
    if (!lt_cpu_has(LT_HAS_AVX2)) return 0;
    if (to->kind < LT_F16) return quicks[to->kind](at, stride, rows, to);
    int64_t seen = 0; /* where NaN were, there will be more */
    for (int k = 0; k < BESIDE; k++) seen |= to->nan[k];
    if (seen || !quicks[to->kind](at, stride, rows, to)) carefuls[to->kind - LT_F16](at, stride, rows, to);
    return 1;
}
#else
static int add_eight(const unsigned char *at, int64_t stride, int64_t rows, const lt_columns *to) {
    (void)at, (void)stride, (void)rows, (void)to;
    return 0;
}
#endif

static lt_columns from_column(const lt_columns *all, int64_t column) {
    lt_columns some = *all;
    some.guess += column, some.total += column, some.squares += column;
    some.low += column, some.high += column, some.nan += column;
    return some;
}

void lt_add_columns(const lt_columns *to, const unsigned char *rows, int64_t count) {
    int64_t item = items[to->kind], stride = to->columns * item, panel = PANEL / item;
    for (int64_t left = 0; left < to->columns; left += panel) {
        int64_t right = left + panel < to->columns ? left + panel : to->columns;
        int64_t tall = TILE / ((right - left) * item);
        for (int64_t row = 0; row < count; row += tall) {
            int64_t here = row + tall < count ? tall : count - row;
            for (int64_t column = left; column < right; column += BESIDE) {
                int wide = right - column < BESIDE ? (int)(right - column) : BESIDE;
                const unsigned char *at = rows + row * stride + column * item;
                lt_columns some = from_column(to, column);
                if (wide < BESIDE || !add_eight(at, stride, here, &some)) plains[to->kind](at, stride, here, wide, &some);
            }
        }
    }
}
