/* The C core without Python, for the sanitizers: every way against plain memory, faults, a stop in mid-call, threads.
 *
 * `make sanitize` builds this with the address, undefined and thread sanitizers and runs it. */
#include "checksum.h"
#include "columns.h"
#include "documents.h"
#include "lzf.h"
#include "queue.h"
#include "texts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (4 << 20)
#define COUNT 200
#define LENGTH 300
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s (way %d)\n", __FILE__, __LINE__, #condition, way);                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static unsigned char *content;
static int32_t fd, direct_fd;
static uint64_t state = 1;

static uint64_t word(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 16;
}

static void prepare(lt_call *call, int64_t *offsets, int64_t *lengths, int64_t *targets, int64_t length, int direct) {
    lt_call_begin(call);
    for (int i = 0; i < COUNT; i++) {
        offsets[i] = (int64_t)(word() % (uint64_t)(SIZE - length));
        targets[i] = i * length;
    }
    lengths[0] = length;
    call->runs = (lt_runs){.count = COUNT, .fds = &fd, .direct = direct ? &direct_fd : NULL, .one_fd = 1, .offsets = offsets, .lengths = lengths, .one_length = 1};
    call->sink.targets = targets;
}

static void check_gather(lt_queue *queue, int way, int64_t length, int direct, int drop) {
    static int64_t offsets[COUNT], lengths[1], targets[COUNT];
    lt_call call;
    prepare(&call, offsets, lengths, targets, length, direct);
    call.sink.into = malloc((size_t)(COUNT * length)); /* exactly: one byte too many is seen */
    call.drop = drop;
    CHECK(lt_queue_fill(queue, &call) == LT_FINE);
    for (int i = 0; i < COUNT; i++) CHECK(memcmp(call.sink.into + targets[i], content + offsets[i], (size_t)length) == 0);
    free(call.sink.into);
}

/* Runs in the order of the file, most of them with small gaps between: neighbours, empty ones and far ones too. */
static void check_gaps(lt_queue *queue, int way) {
    static int64_t offsets[COUNT], lengths[COUNT], targets[COUNT];
    lt_call call;
    prepare(&call, offsets, lengths, targets, 1, 0);
    int64_t total = 0, count = 0;
    for (int64_t at = 0; count < COUNT; count++) {
        at += word() % 3 == 0 ? 0 : word() % 20 == 0 ? 20000 : (int64_t)(word() % 2000);
        offsets[count] = at, targets[count] = total, lengths[count] = (int64_t)(word() % 1500);
        at += lengths[count], total += lengths[count];
        if (at > SIZE - 30000) break;
    }
    call.runs.count = count, call.runs.lengths = lengths, call.runs.one_length = 0;
    call.sink.into = malloc((size_t)total);
    call.drop = LT_KEEP_NEAR;
    CHECK(lt_queue_fill(queue, &call) == LT_FINE && call.cached == count);
    for (int i = 0; i < count; i++) CHECK(memcmp(call.sink.into + targets[i], content + offsets[i], (size_t)lengths[i]) == 0);
    free(call.sink.into);
}

static void check_windows(lt_queue *queue, int way, int source, int wide, int direct) {
    static int64_t offsets[COUNT], lengths[1], targets[COUNT];
    lt_call call;
    int64_t item = lt_item(source);
    prepare(&call, offsets, lengths, targets, (LENGTH + 1) * item, direct);
    for (int i = 0; i < COUNT; i++) targets[i] = i * (LENGTH + 1);
    call.sink.x = malloc((size_t)(COUNT * LENGTH * wide));
    call.sink.y = malloc((size_t)(COUNT * LENGTH * wide));
    call.sink.length = LENGTH, call.sink.source = source, call.sink.wide = wide;
    call.sink.limit = source == LT_UINT16 ? 65536 : 0;
    int64_t room = 2 * COUNT * (LENGTH + 1);
    int64_t *marks = calloc((size_t)room + 1, sizeof *marks);
    call.sink.marks = marks, call.sink.marks_room = room, call.sink.mark = 65;
    int status = lt_queue_fill(queue, &call);
    CHECK(status == LT_FINE || (status == LT_BAD_TOKEN && wide == 4 && (source == LT_UINT32 || source == LT_INT64)));
    for (int i = 0; status == LT_FINE && i < COUNT * LENGTH; i++) {
        int64_t id = 0;
        memcpy(&id, content + offsets[i / LENGTH] + i % LENGTH * item, (size_t)item);
        if (source == LT_INT32) id = (int32_t)id;
        int64_t got = wide == 8 ? ((int64_t *)call.sink.x)[i] : ((int32_t *)call.sink.x)[i];
        CHECK(got == id);
    }
    if (status == LT_FINE && source == LT_UINT8) { /* every place is noted, in any order, perhaps more than once */
        unsigned char *noted = calloc(COUNT * (LENGTH + 1), 1);
        CHECK(marks[0] <= room);
        for (int64_t i = 1; i <= marks[0]; i++) noted[marks[i]] = 1;
        for (int i = 0; i < COUNT * (LENGTH + 1); i++) CHECK(noted[i] == (content[offsets[i / (LENGTH + 1)] + i % (LENGTH + 1)] == 65));
        free(noted);
    }
    free(marks);
    free(call.sink.x);
    free(call.sink.y);
}

static int after_some(void *token) { return ++*(int *)token > 0; }

static void check_stop(lt_queue *queue, int way, int direct) {
    static int64_t offsets[COUNT], lengths[1], targets[COUNT];
    lt_call call;
    int asked = 0;
    prepare(&call, offsets, lengths, targets, 9000, direct);
    call.sink.into = malloc(COUNT * 9000);
    call.interrupted = after_some;
    call.token = &asked;
    call.asked = 0; /* long ago: it is asked at once */
    CHECK(lt_queue_fill(queue, &call) == LT_INTERRUPTED);
    memset(call.sink.into, 0xAA, COUNT * 9000);
    usleep(2000);
    for (int i = 0; i < COUNT * 9000; i++) CHECK(call.sink.into[i] == 0xAA);
    free(call.sink.into);
}

static void check_faults(lt_queue *queue, int way, int direct) {
    static int64_t offsets[COUNT], lengths[1], targets[COUNT];
    lt_call call;
    prepare(&call, offsets, lengths, targets, 1000, direct);
    call.sink.into = malloc(COUNT * 1000);
    offsets[77] = SIZE - 400;
    offsets[150] = SIZE + 4096;
    CHECK(lt_queue_fill(queue, &call) == LT_READ_FAILED);
    CHECK(call.problem.run == 77 && call.problem.at == 400 && call.problem.value == 0);
    int32_t closed = 900;
    unsigned char *into = call.sink.into;
    prepare(&call, offsets, lengths, targets, 1000, 0);
    call.sink.into = into;
    call.runs.fds = &closed;
    CHECK(lt_queue_fill(queue, &call) == LT_READ_FAILED);
    CHECK(call.problem.run == 0 && call.problem.at == 0 && call.problem.value == EBADF);
    free(into);
}

static void check_fork(lt_queue *queue, int way) {
    pid_t child = fork();
    if (child == 0) {
        lt_call call;
        lt_call_begin(&call);
        int refused = lt_queue_fill(queue, &call) == LT_REFUSED; /* never the parent's ring, threads or staging */
        lt_queue_close(queue);
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void check_way(int way, unsigned depth, int64_t staging) {
    lt_queue queue;
    if (*lt_unavailable(way)) {
        printf("NOT TESTED: way %d: %s\n", way, lt_unavailable(way));
        return;
    }
    int direct_too = way >= LT_AIO && direct_fd >= 0;
    CHECK(lt_queue_open(&queue, way, depth, staging, 4096) == 0);
    for (int turn = 0; turn < 4; turn++) {
        for (int direct = 0; direct <= direct_too; direct++) {
            if (turn % 2) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            check_gather(&queue, way, 1 + (int64_t)(word() % 3000), direct, turn % 3);
            check_gather(&queue, way, 70000, direct, turn % 3);
            check_gather(&queue, way, 1 + (int64_t)(word() % 3000), direct, LT_KEEP_NEAR);
            check_gaps(&queue, way);
            for (int source = 0; source < LT_SOURCES; source++) check_windows(&queue, way, source, turn % 2 ? 4 : 8, direct);
            check_faults(&queue, way, direct);
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            check_stop(&queue, way, direct);
        }
    }
    check_fork(&queue, way);
    lt_queue_close(&queue);
}

static void *alone(void *unused) {
    (void)unused;
    lt_queue queue;
    int64_t offset = 5, length = 1000, target = 0;
    unsigned char into[1000];
    for (int turn = 0; turn < 20; turn++) {
        if (lt_queue_open(&queue, LT_AIO, 3, 1 << 20, 4096) != 0) continue;
        lt_call call;
        lt_call_begin(&call);
        call.runs = (lt_runs){.count = 1, .fds = &fd, .one_fd = 1, .offsets = &offset, .lengths = &length, .one_length = 1};
        call.sink = (lt_sink){.into = into, .targets = &target};
        if (lt_queue_fill(&queue, &call) != LT_FINE) abort();
            lt_queue_close(&queue);
    }
    return NULL;
}

static void check_permute(void) {
    int way = -1;
    uint64_t constants[16], numbers[1000];
    for (int i = 0; i < 16; i++) constants[i] = word() << 20 ^ word();
    for (uint64_t n = 2; n < 1000; n += 7) {
        unsigned char seen[1000] = {0};
        for (uint64_t i = 0; i < n; i++) numbers[i] = i;
        CHECK(lt_permute(numbers, (int64_t)n, n, constants, 8, NULL, 0) == -1);
        for (uint64_t i = 0; i < n; i++) CHECK(numbers[i] < n && !seen[numbers[i]]++);
        CHECK(lt_permute(numbers, (int64_t)n, n, constants, 8, NULL, 1) == -1);
        for (uint64_t i = 0; i < n; i++) CHECK(numbers[i] == i);
    }
    numbers[0] = UINT64_MAX;
    CHECK(lt_permute(numbers, 1, INT64_MAX, constants, 8, NULL, 0) == 0);
    numbers[0] = INT64_MAX - 1;
    CHECK(lt_permute(numbers, 1, INT64_MAX, constants, 8, NULL, 0) == -1);
}

/* Documents by an id, in memory of exactly the size: against a token at a time. */
static void check_documents(int wide, int begins, int64_t rows, int64_t length) {
    int way = -1;
    int64_t size = rows * length, runs = 0, longest = 0;
    void *x = malloc((size_t)(size * wide)), *y = malloc((size_t)(size * wide));
    for (int64_t i = 0; i < size; i++) {
        int64_t tokens[2] = {(int64_t)(word() % 9), (int64_t)(word() % 9)};
        for (int k = 0; k < 2; k++) {
            void *to = (char *)(k ? y : x) + i * wide;
            if (wide == 8) *(int64_t *)to = tokens[k] + (word() % 7 ? 0 : (int64_t)1 << 32);
            else *(int32_t *)to = (int32_t)tokens[k];
        }
    }
    int32_t *planes = malloc((size_t)(2 * size) * 4), *bounds = malloc((size_t)(size + 1) * 4);
    lt_docs docs = {.positions = planes, .ids = planes + size, .bounds = bounds, .mask = malloc((size_t)size), .rows = rows, .length = length, .room = size};
    int64_t found = lt_docs_marked(&docs, x, y, wide, 3, begins);
    for (int64_t i = 0; i < size; i++) {
        int64_t here = wide == 8 ? ((int64_t *)x)[i] : ((int32_t *)x)[i], next = wide == 8 ? ((int64_t *)y)[i] : ((int32_t *)y)[i];
        int last = i % length == length - 1;
        int64_t after = last ? next : wide == 8 ? ((int64_t *)x)[i + 1] : ((int32_t *)x)[i + 1];
        int closes = begins ? after == 3 : here == 3;
        int64_t begin = runs ? bounds[runs] : 0;
        CHECK(docs.positions[i] == i - begin && docs.ids[i] == runs && docs.mask[i] == !closes);
        if (closes || last) {
            CHECK(bounds[++runs] == i + 1);
            if (i + 1 - begin > longest) longest = i + 1 - begin;
        }
    }
    CHECK(found == longest && docs.runs == runs);
    int64_t *marks = malloc((size_t)(size + rows) * sizeof *marks), many = 0;
    for (int64_t i = 0; i < size; i++) {
        int64_t here = wide == 8 ? ((int64_t *)x)[i] : ((int32_t *)x)[i], next = wide == 8 ? ((int64_t *)y)[i] : ((int32_t *)y)[i];
        if (here == 3) marks[many++] = i + i / length;
        if (i % length == length - 1 && next == 3) marks[many++] = i + i / length + 1;
    }
    lt_docs noted = docs;
    noted.runs = noted.longest = 0, noted.documents = 0;
    memset(planes, 0x55, (size_t)(2 * size) * 4);
    CHECK(lt_docs_noted(&noted, marks, many, begins) == longest && noted.runs == runs);
    for (int64_t i = 0, run = 0; i < size; i++) {
        if (i == bounds[run + 1]) run++;
        CHECK(docs.ids[i] == run && docs.positions[i] == i - bounds[run]);
    }
    free(marks);
    lt_docs tight = docs;
    tight.runs = tight.longest = 0, tight.documents = 0, tight.room = runs - 1;
    CHECK(lt_docs_marked(&tight, x, y, wide, 3, begins) == -1);
    free(x), free(y), free(planes), free(bounds), free(docs.mask);
}

/* One document of 25 tokens and one of 3 in rows of 10: two full rows, and a third with both ends and padding. */
static void check_packed(void) {
    int way = -1;
    const uint32_t rows[] = {0, 1, 2, 4}, starts[] = {0, 10, 20, 25};
    const uint16_t sizes[] = {11, 11, 5, 3};
    const int64_t row_bounds[] = {0, 3}, piece_bounds[] = {0, 4}, first[] = {0}, wanted[] = {2, 0};
    lt_packing from = {.rows = rows, .starts = starts, .sizes = sizes, .rows_count = 3, .pieces = 4, .row_bounds = row_bounds, .piece_bounds = piece_bounds, .first = first, .groups = 1, .length = 10, .item = 2, .there = 28};
    int64_t *numbers = malloc(4 * 4 * sizeof *numbers), x[20], y[20], eot = 7;
    uint8_t *padding = malloc(4);
    lt_packed to = {.offsets = numbers, .lengths = numbers + 4, .begins = numbers + 8, .closing = numbers + 12, .padding = padding, .room = 4};
    CHECK(lt_packed_plan(&to, &from, wanted, 2));
    CHECK(to.reads == 4 && to.offsets[2] == 0 && to.lengths[1] == 6 && to.lengths[2] == 6 && to.lengths[3] == 22);
    CHECK(to.runs == 4 && to.closed == 2 && to.begins[2] == 8 && padding[2] && to.closing[0] == 4 && to.closing[1] == 7);
    for (int i = 0; i < 20; i++) x[i] = y[i] = 7;
    CHECK(lt_packed_close(x, y, 8, 20, &to, 9, &eot) == -1);
    CHECK(x[8] == 9 && x[9] == 9 && y[9] == 9 && y[4] == 9 && x[4] == 7 && x[10] == 7 && y[10] == 7);
    x[7] = 1;
    CHECK(lt_packed_close(x, y, 8, 20, &to, 9, &eot) == 1);
    to.reads = to.runs = to.closed = 0, to.room = 3;
    CHECK(!lt_packed_plan(&to, &from, wanted, 2));
    free(numbers), free(padding);
}

/* Two extents of one file, 100 and 50 bytes behind 10 others, with an empty file between. */
static void check_locate(void) {
    int way = -1;
    struct stat found;
    CHECK(fstat(fd, &found) == 0);
    int64_t changed = found.st_ctim.tv_sec * INT64_C(1000000000) + found.st_ctim.tv_nsec;
    const int64_t ends[] = {100, 100, 150}, shift[] = {10, 0, -90}, sizes[] = {SIZE, 0}, times[] = {changed, 0};
    const int32_t fds[] = {fd, -1}, gone[] = {-1, -1}, which[] = {0, 1, 0}, astray[] = {0, 1, 2};
    const int64_t numbers[] = {0, 25, 12}, lengths[] = {100, 50, 4}, crossing[] = {100, 50, 60};
    int32_t to[3];
    int64_t at[3];
    lt_files files = {.extents = 3, .ends = ends, .shift = shift, .which = which, .count = 2, .sizes = sizes, .changed = times, .fds = fds};
    CHECK(lt_locate(&files, numbers, 3, 4, lengths, 0, to, at, 1));
    CHECK(to[0] == fd && to[1] == fd && at[0] == 10 && at[1] == 10 && at[2] == 58);
    CHECK(!lt_locate(&files, numbers, 3, 4, crossing, 0, to, at, 1));
    CHECK(!lt_locate(&files, numbers, 3, 6, lengths + 2, 1, to, at, 1)); /* behind the end of all */
    files.which = astray;
    CHECK(!lt_locate(&files, numbers, 3, 4, lengths, 0, to, at, 1)); /* no such file */
    files.which = which, files.fds = gone;
    CHECK(!lt_locate(&files, numbers, 3, 4, lengths + 2, 1, to, at, 1));
    files.fds = fds, files.changed = ends; /* written since */
    CHECK(!lt_locate(&files, numbers, 3, 4, lengths + 2, 1, to, at, 1));
}

/* Against the plainest sums, in memory of exactly their size; and a checksum in any two pieces. */
static void check_passes(void) {
    int way = -1;
    for (int64_t columns = 1; columns < 3000; columns += 1 + columns / 2) {
        int64_t rows = 1 + (int64_t)(word() % 70), size = rows * columns;
        float *numbers = malloc((size_t)size * sizeof *numbers);
        double *all = calloc((size_t)columns * 5, sizeof *all);
        int64_t *nan = calloc((size_t)columns, sizeof *nan);
        for (int64_t i = 0; i < size; i++) numbers[i] = columns % 2 && word() % 9 == 0 ? 0.0f / 0.0f : (float)(word() % 100);
        lt_columns to = {.kind = LT_F32, .columns = columns, .guess = all, .total = all + columns, .squares = all + 2 * columns, .low = all + 3 * columns, .high = all + 4 * columns, .nan = nan};
        lt_add_columns(&to, (const unsigned char *)numbers, rows);
        for (int64_t column = 0; column < columns; column++) {
            double total = 0, squares = 0, high = 0;
            int64_t missing = 0;
            for (int64_t row = 0; row < rows; row++) {
                double number = numbers[row * columns + column];
                if (number != number) missing++;
                else total += number, squares += number * number, high = number > high ? number : high;
            }
            CHECK(to.total[column] == total && to.squares[column] == squares && to.high[column] == high && to.nan[column] == missing);
        }
        free(numbers), free(all), free(nan);
    }
    if (!lt_has_crc32()) return;
    CHECK(lt_crc32(0, "123456789", 9) == 0xcbf43926u);
    for (int64_t length = 0; length < 300; length++) {
        unsigned char *bytes = malloc((size_t)length + 1);
        memcpy(bytes, content, (size_t)length);
        int64_t cut = length ? (int64_t)(word() % (uint64_t)length) : 0;
        CHECK(lt_crc32(lt_crc32(0, bytes, cut), bytes + cut, length - cut) == lt_crc32(0, bytes, length));
        free(bytes);
    }
    for (int source = 0; source < LT_SOURCES; source++) {
        int64_t place = lt_first_outside(source, content, 1000, 100);
        CHECK(place >= 0 && place < 1000 && lt_first_outside(source, content, place, 100) == -1);
    }
}

static void check_mapping(void) {
    static int64_t offsets[COUNT], lengths[1], targets[COUNT];
    int way = -1;
    lt_call call;
    prepare(&call, offsets, lengths, targets, LENGTH, 0);
    call.sink.into = malloc(COUNT * LENGTH);
    offsets[0] = SIZE - LENGTH, offsets[COUNT - 2] = SIZE - LENGTH + 1, offsets[COUNT - 1] = INT64_MAX - (1 << 20) - LENGTH;
    lt_deliver_mapped(&call, content, SIZE);
    CHECK(call.problem.kind == LT_READ_FAILED && call.problem.run == COUNT - 2 && call.problem.at == LENGTH - 1);
    for (int i = 0; i < COUNT - 2; i++) CHECK(memcmp(call.sink.into + targets[i], content + offsets[i], LENGTH) == 0);
    free(call.sink.into);
    for (int kind = 0; kind < 4; kind++) {
        lt_mapping mapping;
        CHECK(lt_map(&mapping, fd, SIZE - 5, kind & 1, kind >> 1) == 0);
        CHECK(!(kind & 1) || (uintptr_t)mapping.at % (2 << 20) == 4096);
        CHECK(memcmp(mapping.at, content, SIZE - 5) == 0);
        CHECK(lt_take_back(&mapping, 0, mapping.size) == 0 && memcmp(mapping.at, content, SIZE - 5) == 0);
        lt_unmap(&mapping);
        CHECK(lt_map(&mapping, -1, SIZE, kind & 1, 0) == EBADF && mapping.at == NULL);
        CHECK(lt_map(&mapping, fd, 0, kind & 1, 0) == EINVAL && lt_map(&mapping, fd, INT64_MAX, kind & 1, 0) == ENOMEM);
    }
}

/* Damaged JSON and cut UTF-8, in memory that ends where they end: the sanitizer sees a byte read or written too many. */
static void check_texts(void) {
    int way = -1, taken = 0;
    static const char line[] = "{\"a\": [1, -2.5e3, {\"b\": null}], \"text\": \"x\\n\\u00e9\\ud83d\\ude00 \xf0\x9f\x98\x80 words\", \"c\": true}\n";
    static const char signs[] = "\"\\{}[]:,u1e\n\x01\xf0\x80 ";
    static const uint32_t ranges[] = {0x88F, 0x88F, 0x1F600, 0x1F600};
    lt_bytes key = {(const uint8_t *)"text", 4}, end = {(const uint8_t *)"<|e|>", 5}, between = {(const uint8_t *)"\n", 1};
    for (int turn = 0; turn < 20000; turn++) {
        int64_t size = turn ? (int64_t)(word() % sizeof line) : (int64_t)sizeof line - 1;
        uint8_t *block = malloc((size_t)size + !size);
        memcpy(block, line, (size_t)size);
        for (int i = 0; size && turn && i < (int)(word() % 3); i++) block[word() % (uint64_t)size] = (uint8_t)signs[word() % (sizeof signs - 1)];
        for (int json = 0; json < 2; json++) {
            lt_bytes whole = {block, size};
            lt_joined to = {.out = malloc((size_t)lt_joined_room(whole, between, end))};
            int fine = json ? lt_join_json(whole, key, end, &to) : lt_join_lines(whole, between, end, &to);
            CHECK(to.size <= size + 2 * end.size + 8);
            int64_t place = -1, begin = (int64_t)(word() % (uint64_t)(size + 1)), over = lt_string_units(whole, begin);
            CHECK(over >= begin && over <= size);
            if (fine) taken += json && lt_find_code_points((lt_bytes){to.out, to.size}, ranges, 2, &place, 1) > 0;
            CHECK(turn || fine);
            free(to.out);
        }
        free(block);
    }
    CHECK(taken > 100);
}

/* Bytes of chance, mostly short copies and runs: nothing outside of two buffers of exactly their size is touched. */
static void check_lzf(void) {
    int way = -1, fine = 0;
    for (int turn = 0; turn < 20000; turn++) {
        int64_t count = (int64_t)(word() % 200), room = (int64_t)(word() % 600);
        uint8_t *packed = malloc((size_t)count + 1), *into = malloc((size_t)room + 1);
        uint8_t *tight = malloc(count ? (size_t)count : 1), *out = malloc(room ? (size_t)room : 1);
        for (int64_t i = 0; i < count; i++) packed[i] = word() % 3 ? (uint8_t)(word() % 34) : (uint8_t)word();
        memcpy(tight, packed, (size_t)count);
        int64_t came = lt_unpack_lzf(tight, count, out, room);
        CHECK(came >= -1 && came <= room);
        CHECK(lt_unpack_lzf(packed, count, into, room) == came);
        CHECK(came <= 0 || memcmp(into, out, (size_t)came) == 0);
        fine += came > 0;
        free(packed), free(into), free(tight), free(out);
    }
    CHECK(fine > 100);
}

int main(void) {
    int way = -1;
    char path[] = "check_core.XXXXXX";
    fd = mkstemp(path);
    CHECK(fd >= 0);
    content = malloc(SIZE);
    for (int i = 0; i < SIZE; i++) content[i] = (unsigned char)word();
    CHECK(write(fd, content, SIZE) == SIZE && fsync(fd) == 0);
    direct_fd = open(path, O_RDONLY | O_DIRECT);
    if (direct_fd < 0) printf("NOT TESTED: O_DIRECT, which this file system refuses\n");
    check_locate(); /* a file without a name has changed */
    unlink(path);
    check_mapping();
    check_passes();
    check_texts();
    check_lzf();
    check_permute();
    for (int64_t length = 1; length < 300; length += 1 + length / 3) {
        for (int kind = 0; kind < 4; kind++) check_documents(kind & 1 ? 8 : 4, kind >> 1, 3, length);
    }
    check_packed();
    for (way = 0; way < LT_WAYS; way++) {
        check_way(way, 16, 1 << 20);
        check_way(way, 4, lt_least_staging(way, 4096));
    }
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, alone, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    free(content);
    printf("fine\n");
    return 0;
}
