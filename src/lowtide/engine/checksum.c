/* CRC-32 as zlib has it, by carry-less multiplication; ids checked against a vocabulary; files read and checked so.
 *
 * Sixty-four bytes at a time are folded onto the next sixty-four: a remainder by a polynomial is kept through a
 * multiplication by the remainder of the distance. (Gopal et al., "Fast CRC computation using PCLMULQDQ", 2009.)
 * Where registers have 512 bits, 512 bytes at a time: four times as fast, which is the speed of the page cache. */
#include "checksum.h"
#include "cpu.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#ifdef LT_X86
#include <immintrin.h>
#define CARRY_LESS __attribute__((target("pclmul,sse4.1")))

/* For the few bytes at the end. */
static uint32_t by_bits(uint32_t crc, const unsigned char *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return crc;
}

CARRY_LESS static inline __m128i folded(__m128i one, __m128i by, __m128i next) {
    return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(one, by, 0x00), _mm_clmulepi64_si128(one, by, 0x11)));
}

#define WIDE 512 /* bytes: eight registers, so that no multiplication waits for another */

__attribute__((target("vpclmulqdq,avx512f"))) static inline __m512i widely_folded(__m512i one, __m512i by, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(one, by, 0x00), high = _mm512_clmulepi64_epi128(one, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

/* The four lanes that stand for all whole WIDEs of these bytes, of which there is one or more. Remainders by 4128 and 4064
 * bits (eight registers on), and by 544 and 480 (one). */
__attribute__((target("vpclmulqdq,avx512f"))) static void widely(__m128i lanes[4], uint32_t crc, const unsigned char *at, int64_t count) {
    const __m512i eight_on = _mm512_set4_epi64(0x1d741f35c, 0x1072db28, 0x1d741f35c, 0x1072db28);
    const __m512i one_on = _mm512_set4_epi64(0x1c6e41596, 0x154442bd4, 0x1c6e41596, 0x154442bd4);
    __m512i all[8];
    for (int k = 0; k < 8; k++) all[k] = _mm512_loadu_si512(at + 64 * k);
    all[0] = _mm512_xor_si512(all[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (at += WIDE, count -= WIDE; count >= WIDE; at += WIDE, count -= WIDE) {
        for (int k = 0; k < 8; k++) all[k] = widely_folded(all[k], eight_on, _mm512_loadu_si512(at + 64 * k));
    }
    for (int k = 1; k < 8; k++) all[k] = widely_folded(all[k - 1], one_on, all[k]);
    memcpy(lanes, &all[7], 64);
}

/* Remainders of powers of x, bits in reverse and one place up: by 544 and 480 bits (four lanes on), 160 and 96 (one lane
 * on), 64; the polynomial itself and its reciprocal. `count` is 64 or more and whole sixteens. */
CARRY_LESS static uint32_t by_folding(uint32_t crc, const unsigned char *bytes, int64_t count) {
    const __m128i four_on = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), one_on = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i half_on = _mm_set_epi64x(0, 0x163cd6124), ends = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low = _mm_set_epi32(0, 0, 0, -1);
    const __m128i *at = (const __m128i *)bytes;
    __m128i lanes[4];
    int64_t done = 64;
    if (count >= WIDE && lt_cpu_has(LT_HAS_WIDE_PCLMUL)) {
        done = count / WIDE * WIDE;
        widely(lanes, crc, bytes, done);
    } else {
        for (int k = 0; k < 4; k++) lanes[k] = _mm_loadu_si128(at + k);
        lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)crc));
    }
    for (at += done / 16, count -= done; count >= 64; at += 4, count -= 64) {
        for (int k = 0; k < 4; k++) lanes[k] = folded(lanes[k], four_on, _mm_loadu_si128(at + k));
    }
    __m128i all = lanes[0];
    for (int k = 1; k < 4; k++) all = folded(all, one_on, lanes[k]);
    for (; count >= 16; at++, count -= 16) all = folded(all, one_on, _mm_loadu_si128(at));
    /* 128 bits to 96, to 64, and by Barrett's reduction to the 32 that are left. */
    all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, one_on, 0x10));
    all = _mm_xor_si128(_mm_srli_si128(all, 4), _mm_clmulepi64_si128(_mm_and_si128(all, low), half_on, 0x00));
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(all, low), ends, 0x10), low);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(all, _mm_clmulepi64_si128(quotient, ends, 0x00)), 1);
}

int lt_has_crc32(void) { return lt_cpu_has(LT_HAS_PCLMUL) != 0; }

uint32_t lt_crc32(uint32_t crc, const void *bytes, int64_t count) {
    const unsigned char *at = bytes;
    int64_t whole = count < 64 ? 0 : count / 16 * 16;
    crc = ~crc;
    if (whole) crc = by_folding(crc, at, whole);
    return ~by_bits(crc, at + whole, count - whole);
}
#else
int lt_has_crc32(void) { return 0; }
uint32_t lt_crc32(uint32_t crc, const void *bytes, int64_t count) { return (void)bytes, (void)count, crc; }
#endif

#define WIDENED 512 /* ids at a time: 4 KiB of the stack, which the first-level cache holds */

uint32_t lt_crc32_of_ids(uint32_t crc, int source, const void *ids, int64_t count) {
    int64_t item = lt_item(source), wide[WIDENED];
    for (int64_t at = 0; at < count; at += WIDENED) {
        int64_t here = count - at < WIDENED ? count - at : WIDENED;
        lt_widen(source, 8, (const unsigned char *)ids + at * item, here, wide, NULL, 0);
        crc = lt_crc32(crc, wide, here * 8);
    }
    return crc;
}

/* The largest of a few thousand at a time, signed ones below zero as very large ones, so that the loop has no branch. */
#define LARGEST(NAME, FROM, UNSIGNED, HOW)                                                                             \
    HOW static uint64_t NAME(const void *ids, int64_t count) {                                                         \
        const FROM *all = ids;                                                                                         \
        UNSIGNED most = 0;                                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            UNSIGNED id = (UNSIGNED)all[i];                                                                            \
            most = id > most ? id : most;                                                                              \
        }                                                                                                              \
        return most;                                                                                                   \
    }

#define LOOSE __attribute__((aligned(1), may_alias))
typedef uint8_t LOOSE any_u8;
typedef uint16_t LOOSE any_u16;
typedef uint32_t LOOSE any_u32;
typedef int32_t LOOSE any_i32;
typedef int64_t LOOSE any_i64;

#define LARGESTS(HOW, NAME)                                                                                            \
    LARGEST(NAME##_u8, any_u8, uint8_t, HOW)                                                                           \
    LARGEST(NAME##_u16, any_u16, uint16_t, HOW)                                                                        \
    LARGEST(NAME##_u32, any_u32, uint32_t, HOW)                                                                        \
    LARGEST(NAME##_i32, any_i32, uint32_t, HOW)                                                                        \
    LARGEST(NAME##_i64, any_i64, uint64_t, HOW)                                                                        \
    static uint64_t (*const NAME[LT_SOURCES])(const void *, int64_t) = {NAME##_u8, NAME##_u16, NAME##_u32, NAME##_i32, NAME##_i64};

LARGESTS(, largest)
#ifdef LT_X86 /* which has no unsigned maximum of 16 bits in what every processor must have */
LARGESTS(__attribute__((target("avx2"))), quickly_largest)
#endif

int64_t lt_first_outside(int source, const void *ids, int64_t count, uint64_t vocab) {
    static const uint64_t above[LT_SOURCES] = {1u << 8, 1u << 16, UINT64_C(1) << 32, UINT64_C(1) << 31, UINT64_C(1) << 63};
    int64_t item = lt_item(source), id;
    uint64_t limit = vocab < above[source] ? vocab : above[source]; /* a vocabulary may be larger than its type */
    uint64_t (*most)(const void *, int64_t) = largest[source];
#ifdef LT_X86
    if (lt_cpu_has(LT_HAS_AVX2)) most = quickly_largest[source];
#endif
    for (int64_t at = 0; at < count; at += 4096) {
        const unsigned char *from = (const unsigned char *)ids + at * item;
        int64_t here = count - at < 4096 ? count - at : 4096;
        if (most(from, here) < limit) continue;
        return at + (limit ? lt_first_refused(source, 8, from, here, limit, &id) : 0);
    }
    return -1;
}

#define PIECE (2 << 20) /* bytes read before they are checked; smaller ones are read no faster, and 64 KiB a third slower */

void lt_read_checked(lt_checked *to, int fd, int64_t offset, unsigned char *into, int64_t length, const lt_ids *ids) {
    int64_t item = ids ? lt_item(ids->source) : 1, seen = ids ? ids->skip : 0; /* seen: ids before this byte are checked */
    while (to->got < length) {
        int64_t wanted = length - to->got < PIECE ? length - to->got : PIECE;
        ssize_t got = pread(fd, into + to->got, (size_t)wanted, offset + to->got);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) to->error = errno;
        if (got <= 0) return;
        if (to->summed) to->crc = lt_crc32(to->crc, into + to->got, got);
        to->got += got;
        int64_t whole = to->got > seen ? (to->got - seen) / item : 0;
        if (ids == NULL || whole == 0 || to->outside >= 0) continue;
        int64_t place = lt_first_outside(ids->source, into + seen, whole, ids->vocab);
        if (place >= 0) to->outside = (seen - ids->skip) / item + place;
        seen += whole * item;
    }
}
