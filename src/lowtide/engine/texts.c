/* See texts.h. JSON is read strictly: whatever is not plainly right (an escape that is half of a pair, the key twice, a control character, deep
   nesting) is left to the caller's own parser, which knows what to say about it. */
#define _GNU_SOURCE
#include "texts.h"

#include "cpu.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifdef LT_X86
#include <immintrin.h>
#endif

#define DEEPEST 64
#define TOPS 0x8080808080808080ULL

static uint64_t word_at(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

int64_t lt_joined_room(lt_bytes block, lt_bytes between, lt_bytes end) {
    int64_t documents = 1;
    const uint8_t *at = block.at, *stop = block.at + block.size;
    while ((at = memmem(at, (size_t)(stop - at), between.at, (size_t)between.size)) != NULL) documents++, at += between.size;
    return block.size + documents * end.size + 16; /* a step of `string` may write past what it keeps */
}

static void close_document(lt_joined *to, int64_t began, lt_bytes end) {
    if (to->size == began) {
        to->empty++;
        return;
    }
    memcpy(to->out + to->size, end.at, (size_t)end.size);
    to->size += end.size;
    to->documents++;
}

int lt_join_lines(lt_bytes block, lt_bytes between, lt_bytes end, lt_joined *to) {
    const uint8_t *at = block.at, *stop = block.at + block.size;
    int lines = between.size == 1 && between.at[0] == '\n';
    while (at < stop) {
        const uint8_t *found = memmem(at, (size_t)(stop - at), between.at, (size_t)between.size);
        int64_t began = to->size, size = (found ? found : stop) - at;
        if (lines && size && at[size - 1] == '\r') size--;
        memcpy(to->out + began, at, (size_t)size);
        to->size += size;
        close_document(to, began, end);
        at = found ? found + between.size : stop;
    }
    return 1;
}

/* JSON: each of these returns where it stopped, or NULL. */

static const uint8_t *blanks(const uint8_t *at, const uint8_t *stop) {
    while (at < stop && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
    return at;
}

static int hex4(const uint8_t *at, const uint8_t *stop, uint32_t *code) {
    if (stop - at < 4) return 0;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t digit = at[i], low = digit | 0x20;
        if (digit >= '0' && digit <= '9') digit -= '0';
        else if (low >= 'a' && low <= 'f') digit = low - 'a' + 10;
        else return 0;
        *code = *code << 4 | digit;
    }
    return 1;
}

static uint8_t *spell(uint32_t code, uint8_t *out) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = 0xC0 | code >> 6;
        *out++ = 0x80 | (code & 63);
    } else {
        if (code < 0x10000) {
            *out++ = 0xE0 | code >> 12;
        } else {
            *out++ = 0xF0 | code >> 18;
            *out++ = 0x80 | (code >> 12 & 63);
        }
        *out++ = 0x80 | (code >> 6 & 63);
        *out++ = 0x80 | (code & 63);
    }
    return out;
}

static const uint8_t meant[256] = {['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};

/* `at`: after the backslash. */
static const uint8_t *escape(const uint8_t *at, const uint8_t *stop, uint8_t **out) {
    if (at == stop) return NULL;
    if (meant[*at]) {
        *(*out)++ = meant[*at];
        return at + 1;
    }
    uint32_t code, second;
    if (*at != 'u' || !hex4(at + 1, stop, &code)) return NULL;
    at += 5;
    if (code >= 0xD800 && code < 0xE000) {
        if (code >= 0xDC00 || stop - at < 6 || at[0] != '\\' || at[1] != 'u' || !hex4(at + 2, stop, &second)) return NULL;
        if (second < 0xDC00 || second >= 0xE000) return NULL;
        code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
        at += 6;
    }
    *out = spell(code, *out);
    return at;
}

/* `STEP` bytes from `at` to `out`; returns how many of them come before a quote, a backslash or a control character. */
#ifdef __SSE2__
#define STEP 16
static int plain_bytes(const uint8_t *at, uint8_t *out) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)at);
    _mm_storeu_si128((__m128i *)out, bytes);
    __m128i sign = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    __m128i control = _mm_cmpeq_epi8(_mm_max_epu8(bytes, _mm_set1_epi8(0x1F)), _mm_set1_epi8(0x1F));
    unsigned found = (unsigned)_mm_movemask_epi8(_mm_or_si128(sign, control));
    return found ? __builtin_ctz(found) : STEP;
}
#else
#define STEP 8
#define ONES 0x0101010101010101ULL
/* The top bit of every byte that is zero, and perhaps of bytes after the first such one: enough to find the first. */
static uint64_t zeros(uint64_t word) { return (word - ONES) & ~word & TOPS; }

static int plain_bytes(const uint8_t *at, uint8_t *out) {
    uint64_t word = word_at(at);
    uint64_t found = zeros(word ^ ONES * '"') | zeros(word ^ ONES * '\\') | zeros(word & ONES * 0xE0);
    memcpy(out, &word, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return found ? __builtin_ctzll(found) >> 3 : STEP;
#else
    return found ? 0 : STEP;
#endif
}
#endif

#ifdef LT_X86
/* Sixty-four bytes of a string at a time, escapes of one letter too, up to whatever else there is: a quote, a control
 * character, `\u`, the last few bytes. Code has an escape every 35 bytes, and a processor that guesses wrongly at each of
 * them takes long: here, letters after a backslash are looked up and backslashes squeezed out, without a
 * branch. Which of several backslashes in a row escape is a subtraction, as simdjson has it. */
__attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi,bmi2,popcnt"))) static const uint8_t *squeezed(const uint8_t *at, const uint8_t *stop, uint8_t **out) {
    const uint64_t odd = 0xAAAAAAAAAAAAAAAAULL;
    const __m512i low = _mm512_loadu_si512(meant), high = _mm512_loadu_si512(meant + 64);
    for (uint64_t ends = 0; !ends && stop - at >= 64;) {
        __m512i bytes = _mm512_loadu_si512(at);
        uint64_t slashes = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\\'));
        uint64_t pairs = ((slashes << 1 | odd) - slashes) ^ odd;
        uint64_t escaped = pairs ^ slashes, escaping = pairs & slashes;
        __m512i letters = _mm512_permutex2var_epi8(low, bytes, high);
        uint64_t known = _mm512_test_epi8_mask(letters, letters) & ~_mm512_movepi8_mask(bytes);
        ends = (_mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('"')) & ~escaped) | _mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8(0x20));
        ends |= (escaped & ~known) >> 1; /* its backslash */
        unsigned taken = ends ? (unsigned)__builtin_ctzll(ends) : 64 - (unsigned)(escaping >> 63); /* its letter comes next time */
        uint64_t kept = _bzhi_u64(~escaping, taken);
        _mm512_storeu_si512(*out, _mm512_maskz_compress_epi8(kept, _mm512_mask_mov_epi8(bytes, escaped, letters)));
        *out += __builtin_popcountll(kept);
        at += taken;
    }
    return at;
}
#endif

/* A string after its opening quote, written to `*out`; what it means is never longer than its spelling. */
static const uint8_t *string(const uint8_t *at, const uint8_t *stop, uint8_t **out) {
    for (;;) {
#ifdef LT_X86
        if (lt_cpu_has(LT_HAS_COMPRESS)) at = squeezed(at, stop, out);
#endif
        while (stop - at >= STEP) {
            int fine = plain_bytes(at, *out);
            at += fine;
            *out += fine;
            if (fine < STEP) break;
        }
        while (at < stop && *at != '"' && *at != '\\' && *at >= 0x20) *(*out)++ = *at++;
        if (at == stop || *at < 0x20) return NULL;
        if (*at++ == '"') return at;
        if ((at = escape(at, stop, out)) == NULL) return NULL;
    }
}

static const uint8_t *digits(const uint8_t *at, const uint8_t *stop) {
    const uint8_t *first = at;
    while (at < stop && *at >= '0' && *at <= '9') at++;
    return at > first ? at : NULL;
}

static const uint8_t *number(const uint8_t *at, const uint8_t *stop) {
    if (at < stop && *at == '-') at++;
    const uint8_t *first = at;
    if ((at = digits(at, stop)) == NULL || (*first == '0' && at - first > 1)) return NULL;
    if (at < stop && *at == '.' && (at = digits(at + 1, stop)) == NULL) return NULL;
    if (at < stop && (*at | 0x20) == 'e') {
        at++;
        if (at < stop && (*at == '+' || *at == '-')) at++;
        at = digits(at, stop);
    }
    return at;
}

static const uint8_t *word(const uint8_t *at, const uint8_t *stop, const char *spelled) {
    size_t size = strlen(spelled);
    return (size_t)(stop - at) >= size && memcmp(at, spelled, size) == 0 ? at + size : NULL;
}

/* Any value; its text, if any, is written behind `out` and forgotten. */
static const uint8_t *value(const uint8_t *at, const uint8_t *stop, uint8_t *out, int depth) {
    if (at == stop || depth > DEEPEST) return NULL;
    if (*at == '"') return string(at + 1, stop, &out);
    if (*at == 't') return word(at, stop, "true");
    if (*at == 'f') return word(at, stop, "false");
    if (*at == 'n') return word(at, stop, "null");
    if (*at != '{' && *at != '[') return number(at, stop);
    uint8_t closing = *at == '{' ? '}' : ']';
    at = blanks(at + 1, stop);
    if (at < stop && *at == closing) return at + 1;
    for (;;) {
        uint8_t *kept = out;
        if (closing == '}') {
            if (at == stop || *at != '"' || (at = string(at + 1, stop, &kept)) == NULL) return NULL;
            at = blanks(at, stop);
            if (at == stop || *at++ != ':') return NULL;
            at = blanks(at, stop);
        }
        if ((at = value(at, stop, out, depth + 1)) == NULL) return NULL;
        at = blanks(at, stop);
        if (at == stop) return NULL;
        if (*at == closing) return at + 1;
        if (*at != ',') return NULL;
        at = blanks(at + 1, stop);
    }
}

static int json_line(const uint8_t *at, const uint8_t *stop, lt_bytes key, lt_joined *to) {
    uint8_t *out = to->out + to->size;
    int found = 0;
    if (*at++ != '{') return 0;
    do {
        at = blanks(at, stop);
        if (at == stop || *at++ != '"') return 0;
        uint8_t *name = out;
        if ((at = string(at, stop, &name)) == NULL) return 0;
        int wanted = name - out == key.size && memcmp(out, key.at, (size_t)key.size) == 0;
        at = blanks(at, stop);
        if (at == stop || *at++ != ':') return 0;
        at = blanks(at, stop);
        if (wanted) {
            if (found++ || at == stop || *at != '"' || (at = string(at + 1, stop, &out)) == NULL) return 0;
        } else if ((at = value(at, stop, out, 0)) == NULL) {
            return 0;
        }
        at = blanks(at, stop);
        if (at == stop) return 0;
    } while (*at++ == ',');
    to->size = out - to->out;
    return found && at[-1] == '}' && blanks(at, stop) == stop;
}

int lt_join_json(lt_bytes block, lt_bytes key, lt_bytes end, lt_joined *to) {
    const uint8_t *at = block.at, *stop = block.at + block.size;
    while (at < stop) {
        const uint8_t *found = memchr(at, '\n', (size_t)(stop - at)), *over = found ? found : stop;
        int64_t began = to->size;
        at = blanks(at, over);
        if (at < over) {
            if (!json_line(at, over, key, to)) return 0;
            close_document(to, began, end);
        }
        at = over + 1;
    }
    return 1;
}

int64_t lt_string_units(lt_bytes text, int64_t first) {
    const uint8_t *at = text.at + first, *stop = text.at + text.size;
    uint32_t code;
    while (at < stop && *at != '"') {
        if (*at != '\\') at++;
        else if (stop - at < 2 || (at[1] == 'u' && !hex4(at + 2, stop, &code))) break;
        else at += at[1] == 'u' ? 6 : 2;
    }
    return at - text.at;
}

static int within(uint32_t code, const uint32_t *ranges, int64_t count) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (ranges[2 * middle + 1] < code) low = middle + 1;
        else high = middle;
    }
    return low < count && ranges[2 * low] <= code;
}

/* Past bytes below 0x80, 64 at a time where there are as many. */
static const uint8_t *past_ascii(const uint8_t *at, const uint8_t *stop) {
    while (stop - at >= 64) {
        uint64_t any = 0;
        for (int i = 0; i < 8; i++) any |= word_at(at + 8 * i);
        if (any & TOPS) break;
        at += 64;
    }
    while (stop - at >= 8 && !(word_at(at) & TOPS)) at += 8;
    while (at < stop && *at < 0x80) at++;
    return at;
}

int64_t lt_find_code_points(lt_bytes text, const uint32_t *ranges, int64_t count, int64_t *places, int64_t most) {
    const uint8_t *at = text.at, *stop = text.at + text.size;
    int64_t found = 0;
    while ((at = past_ascii(at, stop)) < stop) {
        const uint8_t *first = at;
        int more = *at >= 0xF0 ? 3 : *at >= 0xE0 ? 2 : 1;
        if (*at < 0xC2 || *at > 0xF4 || stop - at <= more) return -1;
        uint32_t code = *at++ & (0x3F >> more);
        for (int i = 0; i < more; i++, at++) {
            if ((*at & 0xC0) != 0x80) return -1;
            code = code << 6 | (*at & 0x3F);
        }
        if (more == 2 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) return -1;
        if (more == 3 && (code < 0x10000 || code > 0x10FFFF)) return -1;
        if (within(code, ranges, count)) {
            if (found < most) places[found] = first - text.at;
            found++;
        }
    }
    return found;
}

/* A letter that every version of Unicode has, ending at `at`: the same list as prepare/inputs/cuts.py. */
static int letter_before(const uint8_t *first, const uint8_t *at) {
    if (at == first) return 0;
    uint8_t last = at[-1], lead = at - first > 1 ? at[-2] : 0, low = last | 0x20;
    if (last < 0x80) return (low >= 'a' && low <= 'z') || (last >= '0' && last <= '9');
    if (last > 0xBF) return 0;
    if (lead == 0xD0 || lead == 0xD1) return 1;
    if (lead == 0xD7) return last >= 0x90 && last <= 0xAA;
    if (lead == 0xD8) return last >= 0xA7 && last <= 0xBA;
    if (lead == 0xD9) return last >= 0x81 && last <= 0x8A;
    if (at - first < 3 || lead < 0x80 || lead > 0xBF) return 0;
    switch (at[-3]) {
    case 0xE0: return (lead == 0xA4 && last >= 0x95 && last <= 0xB9) || (lead == 0xB8 && last >= 0x81 && last <= 0xAE);
    case 0xE3: return (lead == 0x81 && last >= 0x82) || (lead == 0x82 && last >= 0xA2);
    case 0xE5: case 0xE6: case 0xE7: case 0xE8: case 0xEB: case 0xEC: return 1;
    default: return 0;
    }
}

int64_t lt_cut_after(lt_bytes text, int64_t mark, int64_t end) {
    const uint8_t *stop = text.at + end;
    for (const uint8_t *at = text.at + mark; at < stop; at++) {
        int sign = *at == ' ' || *at == '\n';
        if (*at == 0xE3) sign = stop - at >= 3 && at[1] == 0x80 && at[2] == 0x82;
        if (*at == 0xEF) sign = stop - at >= 3 && at[1] == 0xBC && at[2] == 0x8C;
        if (sign && letter_before(text.at, at)) return at - text.at;
    }
    return -1;
}
