/* See texts.h. JSON is read strictly: whatever is not plainly right (an escape that is half of a pair, the key twice, a control character, deep
   nesting) is left to the caller's own parser, which knows what to say about it. */
#define _GNU_SOURCE
#include "texts.h"

#include <string.h>

#define DEEPEST 64
#define ONES 0x0101010101010101ULL
#define TOPS 0x8080808080808080ULL

static uint64_t word_at(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* The top bit of every byte that is zero, and perhaps of bytes after the first such one: enough to find the first. */
static uint64_t zeros(uint64_t word) { return (word - ONES) & ~word & TOPS; }

int64_t lt_joined_room(lt_bytes block, lt_bytes between, lt_bytes end) {
    int64_t documents = 1;
    const uint8_t *at = block.at, *stop = block.at + block.size;
    while ((at = memmem(at, (size_t)(stop - at), between.at, (size_t)between.size)) != NULL) documents++, at += between.size;
    return block.size + documents * end.size + 8;
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

/* `at`: after the backslash. */
static const uint8_t *escape(const uint8_t *at, const uint8_t *stop, uint8_t **out) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (at == stop) return NULL;
    const char *known = *at ? strchr(letters, *at) : NULL;
    if (known) {
        *(*out)++ = (uint8_t)meant[known - letters];
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

/* A string after its opening quote, written to `*out`; what it means is never longer than its spelling. */
static const uint8_t *string(const uint8_t *at, const uint8_t *stop, uint8_t **out) {
    for (;;) {
        while (stop - at >= 8) {
            uint64_t word = word_at(at);
            uint64_t found = zeros(word ^ ONES * '"') | zeros(word ^ ONES * '\\') | zeros(word & ONES * 0xE0);
            memcpy(*out, &word, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            int fine = found ? __builtin_ctzll(found) >> 3 : 8;
#else
            int fine = found ? 0 : 8;
#endif
            at += fine;
            *out += fine;
            if (found) break;
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

static int within(uint32_t code, const uint32_t *ranges, int64_t count) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (ranges[2 * middle + 1] < code) low = middle + 1;
        else high = middle;
    }
    return low < count && ranges[2 * low] <= code;
}

int lt_holds_code_point(lt_bytes text, const uint32_t *ranges, int64_t count) {
    const uint8_t *at = text.at, *stop = text.at + text.size;
    int found = 0;
    while (at < stop) {
        if (*at < 0x80) {
            at++;
            while (stop - at >= 8 && !(word_at(at) & TOPS)) at += 8;
            continue;
        }
        int more = *at >= 0xF0 ? 3 : *at >= 0xE0 ? 2 : 1;
        if (*at < 0xC2 || *at > 0xF4 || stop - at <= more) return -1;
        uint32_t code = *at++ & (0x3F >> more);
        for (int i = 0; i < more; i++, at++) {
            if ((*at & 0xC0) != 0x80) return -1;
            code = code << 6 | (*at & 0x3F);
        }
        if (more == 2 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) return -1;
        if (more == 3 && (code < 0x10000 || code > 0x10FFFF)) return -1;
        found |= within(code, ranges, count);
    }
    return found;
}
