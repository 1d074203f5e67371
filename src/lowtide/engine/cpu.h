/* What this processor has beyond what every one of its kind must: one wheel serves all, so fast paths are asked for. */
#ifndef LOWTIDE_CPU_H
#define LOWTIDE_CPU_H

#if defined(__x86_64__)
#define LT_X86 1
#include <cpuid.h>
#include <stdatomic.h>

enum { LT_ASKED = 1, LT_HAS_AVX2 = 2, LT_HAS_PCLMUL = 4, LT_HAS_WIDE_PCLMUL = 8, LT_HAS_COMPRESS = 16 };

#define LT_WIDE_BYTES (bit_AVX512F | bit_AVX512BW | bit_BMI | bit_BMI2)
#define LT_MOVED_BYTES (bit_AVX512VBMI | bit_AVX512VBMI2)

/* Not __builtin_cpu_supports: its table is missing where the linker has no libgcc. */
static inline int lt_asked_cpu(void) {
    unsigned a, b, c, d, has = LT_ASKED;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return (int)has;
    if ((c & bit_PCLMUL) && (c & bit_SSE4_1)) has |= LT_HAS_PCLMUL;
    if ((c & bit_OSXSAVE) && (c & bit_AVX) && (c & bit_F16C)) {
        unsigned low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        /* Registers of 256 and 512 bits are of use only where the system saves them. */
        if ((low & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2)) {
            has |= LT_HAS_AVX2;
            if ((low & 0xe6) == 0xe6 && (b & bit_AVX512F)) {
                if (c & bit_VPCLMULQDQ) has |= LT_HAS_WIDE_PCLMUL;
                if ((b & LT_WIDE_BYTES) == LT_WIDE_BYTES && (c & LT_MOVED_BYTES) == LT_MOVED_BYTES) has |= LT_HAS_COMPRESS;
            }
        }
    }
    return (int)has;
}

static inline int lt_cpu_has(int what) {
    static atomic_int known;
    int has = atomic_load_explicit(&known, memory_order_relaxed);
    if (has == 0) {
        has = lt_asked_cpu();
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has & what;
}
#endif

#endif
