/* Tokens from their narrow type on disk to int32 or int64: x, y (one token ahead) and the check of ids in one pass.
 *
 * The loops are plain so that the compiler vectorises them; `worst` is a maximum, not a branch, for the same reason.
 * One read of the narrow tokens feeds both outputs: y[i] is the token after x[i]. Where the processor has registers of
 * 256 bits, 65,536 tokens take 12 microseconds instead of 19 (AMD Zen 4). */
#include "core.h"

#include "cpu.h"

/* A signed id below zero is huge when taken as unsigned, so one comparison refuses both ends. Without a vocabulary
 * the limit is what the wide type can hold. */
/* Runs begin at any byte, so tokens are loaded as unaligned ones; on every machine we know that costs nothing. */
#define LOOSE __attribute__((aligned(1), may_alias))
typedef uint8_t LOOSE any_uint8;
typedef uint16_t LOOSE any_uint16;
typedef uint32_t LOOSE any_uint32;
typedef int32_t LOOSE any_int32;
typedef int64_t LOOSE any_int64;

#define KERNEL(NAME, FROM, UNSIGNED, WIDE, HOW)                                                                         \
    HOW static UNSIGNED both_##NAME(const FROM *restrict from, int64_t count, WIDE *restrict x, WIDE *restrict y) {    \
        UNSIGNED worst = 0;                                                                                            \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            UNSIGNED id = (UNSIGNED)from[i];                                                                           \
            worst = id > worst ? id : worst;                                                                           \
            x[i] = (WIDE)from[i];                                                                                      \
            y[i] = (WIDE)from[i + 1];                                                                                  \
        }                                                                                                              \
        UNSIGNED end = count > 0 ? (UNSIGNED)from[count] : 0;                                                          \
        return end > worst ? end : worst;                                                                              \
    }                                                                                                                  \
    HOW static UNSIGNED one_##NAME(const FROM *restrict from, int64_t count, WIDE *restrict to) {                      \
        UNSIGNED worst = 0;                                                                                            \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            UNSIGNED id = (UNSIGNED)from[i];                                                                           \
            worst = id > worst ? id : worst;                                                                           \
            to[i] = (WIDE)from[i];                                                                                     \
        }                                                                                                              \
        return worst;                                                                                                  \
    }                                                                                                                  \
    static uint64_t run_##NAME(const void *from, int64_t count, void *x, void *y) {                                    \
        if (x && y) return both_##NAME(from, count, x, y);                                                             \
        return one_##NAME(from, count, x ? x : y);                                                                     \
    }

typedef uint64_t (*kernel)(const void *, int64_t, void *, void *);

#define KERNELS(TABLE, SUFFIX, HOW)                                                                                    \
    KERNEL(u8_i32##SUFFIX, any_uint8, uint8_t, int32_t, HOW)                                                           \
    KERNEL(u8_i64##SUFFIX, any_uint8, uint8_t, int64_t, HOW)                                                           \
    KERNEL(u16_i32##SUFFIX, any_uint16, uint16_t, int32_t, HOW)                                                        \
    KERNEL(u16_i64##SUFFIX, any_uint16, uint16_t, int64_t, HOW)                                                        \
    KERNEL(u32_i32##SUFFIX, any_uint32, uint32_t, int32_t, HOW)                                                        \
    KERNEL(u32_i64##SUFFIX, any_uint32, uint32_t, int64_t, HOW)                                                        \
    KERNEL(i32_i32##SUFFIX, any_int32, uint32_t, int32_t, HOW)                                                         \
    KERNEL(i32_i64##SUFFIX, any_int32, uint32_t, int64_t, HOW)                                                         \
    KERNEL(i64_i32##SUFFIX, any_int64, uint64_t, int32_t, HOW)                                                         \
    KERNEL(i64_i64##SUFFIX, any_int64, uint64_t, int64_t, HOW)                                                         \
    static const kernel TABLE[LT_SOURCES][2] = {{run_u8_i32##SUFFIX, run_u8_i64##SUFFIX},                              \
                                                {run_u16_i32##SUFFIX, run_u16_i64##SUFFIX},                            \
                                                {run_u32_i32##SUFFIX, run_u32_i64##SUFFIX},                            \
                                                {run_i32_i32##SUFFIX, run_i32_i64##SUFFIX},                            \
                                                {run_i64_i32##SUFFIX, run_i64_i64##SUFFIX}};

KERNELS(kernels, , )
#ifdef LT_X86
KERNELS(wider_kernels, _wider, __attribute__((target("avx2"))))
#endif

static uint64_t widen(int source, int wide, const void *from, int64_t count, void *x, void *y) {
#ifdef LT_X86
    if (lt_cpu_has(LT_HAS_AVX2)) return wider_kernels[source][wide == 8](from, count, x, y);
#endif
    return kernels[source][wide == 8](from, count, x, y);
}

static int64_t token_at(int source, const void *from, int64_t index) {
    switch (source) {
    case LT_UINT8: return ((const any_uint8 *)from)[index];
    case LT_UINT16: return ((const any_uint16 *)from)[index];
    case LT_UINT32: return ((const any_uint32 *)from)[index];
    case LT_INT32: return ((const any_int32 *)from)[index];
    default: return ((const any_int64 *)from)[index];
    }
}

static int is_refused(int wide, int64_t id, uint64_t limit) {
    if (limit) return (uint64_t)id >= limit || (wide == 4 && id > INT32_MAX);
    return wide == 4 && (id > INT32_MAX || id < INT32_MIN);
}

/* A token to x or y alone: each piece of a packed row has two of them. */
static int widen_one(int source, int wide, const void *from, void *to, uint64_t limit) {
    int64_t id = token_at(source, from, 0);
    if (wide == 8) *(int64_t *)to = id;
    else *(int32_t *)to = (int32_t)id;
    return is_refused(wide, id, limit);
}

int lt_widen(int source, int wide, const void *from, int64_t count, void *x, void *y, uint64_t limit) {
    if (count <= 0) return 0;
    if (count == 1 && !(x && y)) return widen_one(source, wide, from, x ? x : y, limit);
    uint64_t worst = widen(source, wide, from, count, x, y);
    if (limit == 0 && (wide == 8 || source == LT_UINT8 || source == LT_UINT16 || source == LT_INT32)) return 0;
    /* int32 ids are compared as unsigned 32-bit numbers, which a limit above 2^31 cannot tell from negative ones. */
    int positive = worst <= INT32_MAX || (wide == 8 && source != LT_INT32);
    if (positive && (limit == 0 || worst < limit)) return 0;
    int64_t id, seen = x && y ? count + 1 : count;
    return lt_first_refused(source, wide, from, seen, limit, &id) >= 0;
}

int64_t lt_first_refused(int source, int wide, const void *from, int64_t count, uint64_t limit, int64_t *id) {
    for (int64_t i = 0; i < count; i++) {
        *id = token_at(source, from, i);
        if (is_refused(wide, *id, limit)) return i;
    }
    return -1;
}
