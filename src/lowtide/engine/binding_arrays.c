/* Python's door to documents.c, packed.c, located.c, columns.c and checksum.c: buffers held and checked, numbers copied, the GIL released. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "binding_arrays.h"
#include "checksum.h"
#include "columns.h"
#include "documents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Py_buffer views[10]; /* watched files have six arrays, and a call four more */
    int held;
} holding;

static void let_go(holding *all) {
    while (all->held) PyBuffer_Release(&all->views[--all->held]);
}

static Py_buffer *hold(holding *all, PyObject *object, const char *name, const char *letters, Py_ssize_t item, int flags) {
    Py_buffer *view = &all->views[all->held];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) return NULL;
    all->held++;
    const char *format = view->format ? view->format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    if ((item == 0 || view->itemsize == item) && format[0] && !format[1] && strchr(letters, format[0])) return view;
    PyErr_Format(PyExc_TypeError, "%s: expected an array of other integers, got format '%s' of %zd bytes. Convert it first.", name,
                 view->format ? view->format : "B", view->itemsize);
    return NULL;
}

static int bad_number(const char *name, const char *expected, long long got) {
    PyErr_Format(PyExc_ValueError, "%s: expected %s, got %lld. Check the numbers of this call.", name, expected, got);
    return 0;
}

/* Planes(positions, ids, bounds, mask, length) */
static int parse_planes(PyObject *planes, holding *all, lt_docs *to) {
    if (!PyTuple_Check(planes) || PyTuple_Size(planes) != 5) {
        PyErr_SetString(PyExc_TypeError, "planes: expected Planes(positions, ids, bounds, mask, length), got something else. Pass Planes.");
        return 0;
    }
    Py_buffer *of[4];
    for (int i = 0; i < 4; i++) {
        of[i] = hold(all, PyTuple_GetItem(planes, i), "planes", i < 3 ? "il" : "?", i < 3 ? 4 : 1, PyBUF_WRITABLE);
        if (of[i] == NULL) return 0;
    }
    long long length = PyLong_AsLongLong(PyTuple_GetItem(planes, 4)), size = of[3]->len;
    if (length == -1 && PyErr_Occurred()) return 0;
    if (length < 1 || size % length || size > INT32_MAX) return bad_number("length", "whole rows of at most 2**31 - 1 tokens", length);
    if (of[0]->len != 4 * size || of[1]->len != 4 * size || of[2]->len < 4) return bad_number("planes", "planes of one size", of[1]->len);
    *to = (lt_docs){.positions = of[0]->buf, .ids = of[1]->buf, .bounds = of[2]->buf, .mask = of[3]->buf, .rows = size / length, .length = length, .room = of[2]->len / 4 - 1};
    return 1;
}

static PyObject *longest_of(int64_t found, const lt_docs *docs) {
    if (found >= 0) return PyLong_FromLongLong(found);
    return bad_number("bounds", "room for every run", docs->room), NULL;
}

PyObject *lt_py_documents_marked(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "documents_marked: expected 5 arguments, got %zd. Pass all of them.", count);
    holding all = {.held = 0};
    lt_docs docs;
    PyObject *result = NULL;
    long long id = PyLong_AsLongLong(args[3]);
    int begins = PyObject_IsTrue(args[4]);
    if ((id == -1 && PyErr_Occurred()) || begins < 0 || !parse_planes(args[0], &all, &docs)) goto end;
    Py_buffer *x = hold(&all, args[1], "x", "ilq", 0, 0), *y = x ? hold(&all, args[2], "y", "ilq", 0, 0) : NULL;
    if (y == NULL) goto end;
    int64_t size = docs.rows * docs.length;
    if ((x->itemsize != 4 && x->itemsize != 8) || x->itemsize != y->itemsize || x->len != size * x->itemsize || y->len != x->len) {
        bad_number("x", "x and y of int32 or int64 and of the planes' size", (long long)x->len);
        goto end;
    }
    int64_t found;
    Py_BEGIN_ALLOW_THREADS
    found = lt_docs_marked(&docs, x->buf, y->buf, (int)x->itemsize, id, begins);
    Py_END_ALLOW_THREADS
    result = longest_of(found, &docs);
end:
    let_go(&all);
    return result;
}

static int ascending(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* Marks in a copy, ascending and each once: they lie where the planes will be. How many, or -1. */
static int64_t sorted_marks(const Py_buffer *marks, int64_t end, int64_t **copy) {
    int64_t room = marks->len / 8 - 1, count = room < 0 ? -1 : *(const int64_t *)marks->buf, kept = 0;
    if (count < 0 || count > room) return -1;
    if ((*copy = malloc((size_t)(count ? count : 1) * 8)) == NULL) return -1;
    memcpy(*copy, (const int64_t *)marks->buf + 1, (size_t)count * 8);
    int sorted = 1;
    for (int64_t i = 1; i < count; i++) sorted &= (*copy)[i] >= (*copy)[i - 1];
    if (!sorted) qsort(*copy, (size_t)count, 8, ascending);
    for (int64_t i = 0; i < count; i++) {
        if (kept == 0 || (*copy)[i] != (*copy)[kept - 1]) (*copy)[kept++] = (*copy)[i];
    }
    return kept == 0 || ((*copy)[0] >= 0 && (*copy)[kept - 1] < end) ? kept : -1;
}

/* documents_noted(planes, marks, begins): None where marks holds more than it has room for, or nothing. */
PyObject *lt_py_documents_noted(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "documents_noted: expected 3 arguments, got %zd. Pass all of them.", count);
    holding all = {.held = 0};
    lt_docs docs;
    PyObject *result = NULL;
    int64_t *copy = NULL, found;
    int begins = PyObject_IsTrue(args[2]);
    if (begins < 0 || !parse_planes(args[0], &all, &docs)) goto end;
    Py_buffer *marks = hold(&all, args[1], "marks", "lq", 8, 0);
    if (marks == NULL) goto end;
    int64_t many = sorted_marks(marks, docs.rows * (docs.length + 1), &copy);
    if (many < 0) {
        result = Py_NewRef(Py_None);
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    found = lt_docs_noted(&docs, copy, many, begins);
    Py_END_ALLOW_THREADS
    result = longest_of(found, &docs);
end:
    free(copy);
    let_go(&all);
    return result;
}

/* Where runs begin and documents end, in a copy that nobody else can change, all of them inside the planes. begins NULL:
 * only the ends. */
static int64_t *copied(const Py_buffer *begins, const Py_buffer *closing, const Py_buffer *padding, int64_t size) {
    int64_t runs = begins ? begins->len / 8 : 0, count = closing->len / 8;
    int64_t *copy = malloc((size_t)(runs + count) * sizeof *copy + (size_t)runs + 1);
    if (copy == NULL) return PyErr_NoMemory(), NULL;
    if (begins) memcpy(copy, begins->buf, (size_t)begins->len);
    memcpy(copy + runs, closing->buf, (size_t)closing->len);
    if (padding) memcpy(copy + runs + count, padding->buf, (size_t)runs);
    int fine = runs ? copy[0] == 0 && copy[runs - 1] < size : begins == NULL || size == 0;
    for (int64_t i = 1; i < runs; i++) fine &= copy[i] > copy[i - 1];
    for (int64_t i = 0; i < count; i++) fine &= copy[runs + i] >= 0 && copy[runs + i] < size;
    if (fine) return copy;
    bad_number("begins", "runs inside the planes, ascending from 0", runs);
    return free(copy), NULL;
}

PyObject *lt_py_documents_given(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "documents_given: expected 4 arguments, got %zd. Pass all of them.", count);
    holding all = {.held = 0};
    lt_docs docs;
    PyObject *result = NULL;
    if (!parse_planes(args[0], &all, &docs)) goto end;
    Py_buffer *begins = hold(&all, args[1], "begins", "lq", 8, 0), *closing = begins ? hold(&all, args[2], "closing", "lq", 8, 0) : NULL;
    if (closing == NULL) goto end;
    Py_buffer *padding = args[3] == Py_None ? NULL : hold(&all, args[3], "padding", "?", 1, 0);
    if (padding == NULL && args[3] != Py_None) goto end;
    int64_t runs = begins->len / 8, many = closing->len / 8;
    if (padding && padding->len != runs) {
        bad_number("padding", "as many as runs", (long long)padding->len);
        goto end;
    }
    int64_t *copy = copied(begins, closing, padding, docs.rows * docs.length), found;
    if (copy == NULL) goto end;
    Py_BEGIN_ALLOW_THREADS
    found = lt_docs_given(&docs, copy, padding ? (const uint8_t *)(copy + runs + many) : NULL, runs, copy + runs, many);
    Py_END_ALLOW_THREADS
    free(copy);
    result = longest_of(found, &docs);
end:
    let_go(&all);
    return result;
}

static int source_of(const Py_buffer *tokens) {
    const char *format = tokens->format ? tokens->format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    int is_signed = strchr("ilq", *format) != NULL;
    if (tokens->itemsize == 1) return is_signed ? -1 : LT_UINT8;
    if (tokens->itemsize == 2) return is_signed ? -1 : LT_UINT16;
    if (tokens->itemsize == 4) return is_signed ? LT_INT32 : LT_UINT32;
    return is_signed ? LT_INT64 : -1;
}

#define TABLES "lowtide.packed_tables"
typedef struct {
    holding all;
    lt_packing packing;
} held_tables;

/* PackedTables(rows, starts, sizes, row_bounds, piece_bounds, first, length, item, there, held); held: None, or all of
 * them as hold_tables checked them. */
static int parse_packing(PyObject *tables, holding *all, lt_packing *to) {
    if (!PyTuple_Check(tables) || PyTuple_Size(tables) != 10) {
        PyErr_SetString(PyExc_TypeError, "tables: expected PackedTables of ten, got something else. Pass PackedTables.");
        return 0;
    }
    if (PyTuple_GetItem(tables, 9) != Py_None) {
        const held_tables *held = PyCapsule_GetPointer(PyTuple_GetItem(tables, 9), TABLES);
        if (held) *to = held->packing;
        return held != NULL;
    }
    Py_buffer *of[6];
    for (int i = 0; i < 6; i++) {
        of[i] = hold(all, PyTuple_GetItem(tables, i), "tables", i == 2 ? "HIL" : i < 2 ? "IL" : "lq", i == 2 ? 0 : i < 2 ? 4 : 8, 0);
        if (of[i] == NULL) return 0;
    }
    long long numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tables, 6 + i));
        if (numbers[i] == -1 && PyErr_Occurred()) return 0;
        if (numbers[i] < 1 || numbers[i] > INT64_MAX / 64) return bad_number("tables", "a length, an item and tokens of 1 or more", numbers[i]);
    }
    int64_t groups = of[5]->len / 8, wide = of[2]->itemsize;
    *to = (lt_packing){.rows = of[0]->buf, .starts = of[1]->buf, .sizes = of[2]->buf, .wide_sizes = wide == 4, .rows_count = of[0]->len / 4 - 1, .pieces = of[1]->len / 4, .row_bounds = of[3]->buf, .piece_bounds = of[4]->buf, .first = of[5]->buf, .groups = groups, .length = numbers[0], .item = numbers[1], .there = numbers[2]};
    int fine = groups > 0 && (wide == 2 || wide == 4) && of[2]->len / wide == to->pieces && of[3]->len / 8 == groups + 1 && of[4]->len / 8 == groups + 1;
    return fine && numbers[1] <= 8 ? 1 : bad_number("tables", "tables of one packing", groups);
}

static void drop_tables(PyObject *capsule) {
    held_tables *held = PyCapsule_GetPointer(capsule, TABLES);
    let_go(&held->all);
    free(held);
}

/* hold_tables(tables): what packed_plan takes as their last part. NumPy describes an array anew whenever it is asked for
 * its memory, and plans ask for six. */
PyObject *lt_py_hold_tables(PyObject *module, PyObject *tables) {
    (void)module;
    if (PyTuple_Check(tables) && PyTuple_Size(tables) == 10 && PyTuple_GetItem(tables, 9) != Py_None) {
        return Py_NewRef(PyTuple_GetItem(tables, 9)); /* they are held: arrays that another capsule holds are not ours to keep */
    }
    held_tables *held = calloc(1, sizeof *held);
    if (held == NULL) return PyErr_NoMemory();
    PyObject *found = parse_packing(tables, &held->all, &held->packing) ? PyCapsule_New(held, TABLES, drop_tables) : NULL;
    if (found == NULL) let_go(&held->all), free(held);
    return found;
}

/* packed_plan(tables, rows, into): (reads, runs, closed, padded), or None where the twin must look at it. */
PyObject *lt_py_packed_plan(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "packed_plan: expected 3 arguments, got %zd. Pass all of them.", count);
    holding all = {.held = 0};
    lt_packing from;
    PyObject *result = NULL;
    if (!parse_packing(args[0], &all, &from)) goto end;
    Py_buffer *rows = hold(&all, args[1], "rows", "lq", 8, 0), *into = rows ? hold(&all, args[2], "into", "lq", 8, PyBUF_WRITABLE) : NULL;
    if (into == NULL) goto end;
    int64_t room = into->len / 40;
    if (into->len % 40) {
        bad_number("into", "five arrays of one length", (long long)into->len);
        goto end;
    }
    int64_t *numbers = into->buf;
    lt_packed to = {.offsets = numbers, .lengths = numbers + room, .begins = numbers + 2 * room, .closing = numbers + 3 * room, .padding = (uint8_t *)(numbers + 4 * room), .room = room};
    int planned;
    Py_BEGIN_ALLOW_THREADS
    planned = lt_packed_plan(&to, &from, rows->buf, rows->len / 8);
    Py_END_ALLOW_THREADS
    if (planned) result = Py_BuildValue("(LLLi)", (long long)to.reads, (long long)to.runs, (long long)to.closed, to.padded);
    else result = Py_NewRef(Py_None);
end:
    let_go(&all);
    return result;
}

#define IDS "bBhHiIlLqQ"

/* packed_close(x, y, begins, closing, padding, pad, eot): which of `closing` does not end with eot; -1: none. Where runs
 * begin matters to padding alone, which few batches have. */
PyObject *lt_py_packed_close(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "packed_close: expected 7 arguments, got %zd. Pass all of them.", count);
    holding all = {.held = 0};
    PyObject *result = NULL;
    int64_t pad = PyLong_AsLongLong(args[5]), eot = 0;
    if (!PyErr_Occurred() && args[6] != Py_None) eot = PyLong_AsLongLong(args[6]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer *x = hold(&all, args[0], "x", IDS, 0, PyBUF_WRITABLE), *y = x ? hold(&all, args[1], "y", IDS, 0, PyBUF_WRITABLE) : NULL;
    Py_buffer *closing = y ? hold(&all, args[3], "closing", "lq", 8, 0) : NULL;
    Py_buffer *padding = closing && args[4] != Py_None ? hold(&all, args[4], "padding", "?", 1, 0) : NULL;
    Py_buffer *begins = padding ? hold(&all, args[2], "begins", "lq", 8, 0) : NULL;
    if (closing == NULL || (begins == NULL && args[4] != Py_None)) goto end;
    int64_t runs = begins ? begins->len / 8 : 0, many = closing->len / 8, wide = x->itemsize, size = x->len / wide, wrong;
    if (y->itemsize != wide || y->len != x->len || (padding && padding->len != runs)) {
        bad_number("x", "x and y of one size, and padding of the runs'", (long long)y->len);
        goto end;
    }
    int64_t *copy = copied(begins, closing, padding, size);
    if (copy == NULL) goto end;
    lt_packed given = {.begins = copy, .closing = copy + runs, .padding = (uint8_t *)(copy + runs + many), .runs = runs, .closed = many, .padded = padding != NULL};
    Py_BEGIN_ALLOW_THREADS
    wrong = lt_packed_close(x->buf, y->buf, (int)wide, size, &given, pad, args[6] == Py_None ? NULL : &eot);
    Py_END_ALLOW_THREADS
    free(copy);
    result = PyLong_FromLongLong(wrong);
end:
    let_go(&all);
    return result;
}

/* locate(files, numbers, stride, lengths, fds, offsets, look), lengths one for all or one each: False where the caller must look closer.
 * files: WatchedFiles(ends, shift, which, sizes, changed, fds) */
PyObject *lt_py_locate(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "locate: expected 7 arguments, got %zd. Pass all of them.", count);
    if (!PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != 6) {
        PyErr_SetString(PyExc_TypeError, "files: expected WatchedFiles of six, got something else. Pass WatchedFiles.");
        return NULL;
    }
    holding all = {.held = 0};
    PyObject *result = NULL;
    Py_buffer *of[6], *numbers, *fds, *offsets, *lengths = NULL;
    int one_length = PyLong_Check(args[3]), look = PyObject_IsTrue(args[6]);
    long long stride = PyLong_AsLongLong(args[2]), length = one_length && !PyErr_Occurred() ? PyLong_AsLongLong(args[3]) : 0;
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 6; i++) {
        int narrow = i == 2 || i == 5;
        if ((of[i] = hold(&all, PyTuple_GetItem(args[0], i), "files", narrow ? "il" : "lq", narrow ? 4 : 8, 0)) == NULL) goto end;
    }
    if ((numbers = hold(&all, args[1], "numbers", "lq", 8, 0)) == NULL || (fds = hold(&all, args[4], "fds", "il", 4, PyBUF_WRITABLE)) == NULL) goto end;
    if ((offsets = hold(&all, args[5], "offsets", "lq", 8, PyBUF_WRITABLE)) == NULL) goto end;
    if (!one_length && (lengths = hold(&all, args[3], "lengths", "lq", 8, 0)) == NULL) goto end;
    int64_t extents = of[0]->len / 8, files = of[5]->len / 4, runs = numbers->len / 8, same = length;
    int fine = stride > 0 && length >= 0 && (lengths == NULL || lengths->len == numbers->len) && fds->len / 4 == runs && offsets->len / 8 == runs;
    fine = fine && of[1]->len / 8 == extents && of[2]->len / 4 == extents && of[3]->len / 8 == files && of[4]->len / 8 == files;
    if (!fine) {
        bad_number("locate", "arrays of one length, and a stride and a length of bytes", files);
        goto end;
    }
    lt_files from = {.extents = extents, .ends = of[0]->buf, .shift = of[1]->buf, .which = of[2]->buf, .count = files, .sizes = of[3]->buf, .changed = of[4]->buf, .fds = of[5]->buf};
    /* The GIL is kept: this takes less time than giving it away and asking for it again. */
    result = PyBool_FromLong(lt_locate(&from, numbers->buf, runs, stride, lengths ? lengths->buf : &same, one_length, fds->buf, offsets->buf, look));
end:
    let_go(&all);
    return result;
}

/* copy_rows(from, offsets, length, into, places), places None: one after the other */
PyObject *lt_py_copy_rows(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "copy_rows: expected 5 arguments, got %zd. Pass all of them.", count);
    holding all = {.held = 0};
    PyObject *result = NULL;
    long long length = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer *from = hold(&all, args[0], "from", "B", 1, 0), *offsets = from ? hold(&all, args[1], "offsets", "lq", 8, 0) : NULL;
    Py_buffer *into = offsets ? hold(&all, args[3], "into", "B", 1, PyBUF_WRITABLE) : NULL;
    Py_buffer *places = into && args[4] != Py_None ? hold(&all, args[4], "places", "lq", 8, 0) : NULL;
    if (into == NULL || (places == NULL && args[4] != Py_None)) goto end;
    int64_t outside = 0;
    if (length > 0 && (places == NULL || places->len == offsets->len)) {
        Py_BEGIN_ALLOW_THREADS
        outside = lt_copy_rows(from->buf, from->len, offsets->buf, offsets->len / 8, length, into->buf, places ? places->buf : NULL, into->len / length);
        Py_END_ALLOW_THREADS
    }
    if (outside >= 0) bad_number("copy_rows", "rows inside of both buffers", outside);
    else result = Py_NewRef(Py_None);
end:
    let_go(&all);
    return result;
}

/* crc32(bytes, crc): None where this processor has nothing faster than zlib. */
PyObject *lt_py_crc32(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "crc32: expected 2 arguments, got %zd. Pass both.", count);
    if (!lt_has_crc32()) Py_RETURN_NONE;
    unsigned long crc = PyLong_AsUnsignedLongMask(args[1]);
    Py_buffer bytes;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &bytes, PyBUF_C_CONTIGUOUS) != 0) return NULL;
    uint32_t found;
    Py_BEGIN_ALLOW_THREADS
    found = lt_crc32((uint32_t)crc, bytes.buf, bytes.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&bytes);
    return PyLong_FromUnsignedLong(found);
}

/* crc32_of_ids(ids, crc): as if they were little-endian int64. None as above. */
PyObject *lt_py_crc32_of_ids(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "crc32_of_ids: expected 2 arguments, got %zd. Pass both.", count);
    if (!lt_has_crc32()) Py_RETURN_NONE;
    holding all = {.held = 0};
    PyObject *result = NULL;
    unsigned long crc = PyLong_AsUnsignedLongMask(args[1]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer *ids = hold(&all, args[0], "ids", "BHILilq", 0, 0);
    if (ids == NULL) goto end;
    int source = source_of(ids);
    uint32_t found;
    if (source < 0) {
        bad_number("ids", "ids of uint8, uint16, uint32, int32 or int64", (long long)ids->itemsize);
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    found = lt_crc32_of_ids((uint32_t)crc, source, ids->buf, ids->len / ids->itemsize);
    Py_END_ALLOW_THREADS
    result = PyLong_FromUnsignedLong(found);
end:
    let_go(&all);
    return result;
}

/* read_checked(fd, offset, into, summed, source, vocab, skip): (bytes, checksum, the first id outside or -1); source -1: ids
 * are not looked at. None as above. */
PyObject *lt_py_read_checked(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "read_checked: expected 7 arguments, got %zd. Pass all of them.", count);
    long long numbers[7] = {0};
    for (int i = 0; i < 7; i++) {
        if (i != 2 && i != 5) numbers[i] = PyLong_AsLongLong(args[i]);
        if (PyErr_Occurred()) return NULL;
    }
    lt_ids ids = {.source = (int)numbers[4], .vocab = PyLong_AsUnsignedLongLong(args[5]), .skip = numbers[6]};
    if (PyErr_Occurred()) return NULL;
    if (numbers[1] < 0 || ids.source < -1 || ids.source >= LT_SOURCES || ids.skip < 0) {
        return bad_number("read_checked", "an offset, a type of ids and bytes to skip", numbers[4]), NULL;
    }
    lt_checked found = {.summed = numbers[3] != 0, .outside = -1};
    if (found.summed && !lt_has_crc32()) Py_RETURN_NONE;
    Py_buffer into;
    if (PyObject_GetBuffer(args[2], &into, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    lt_read_checked(&found, (int)numbers[0], numbers[1], into.buf, into.len, ids.source < 0 ? NULL : &ids);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&into);
    if (found.error) {
        errno = found.error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("(LkL)", (long long)found.got, (unsigned long)found.crc, (long long)found.outside);
}

static int number_of(const Py_buffer *rows) {
    const char *format = rows->format ? rows->format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    int size = rows->itemsize == 1 ? 0 : rows->itemsize == 2 ? 1 : rows->itemsize == 4 ? 2 : 3;
    if (strchr("efd", *format)) return *format == 'e' ? LT_F16 : *format == 'f' ? LT_F32 : LT_F64;
    return 2 * size + (strchr("bhilq", *format) != NULL);
}

/* add_columns(ColumnSums(guess, total, squares, low, high, nan), rows) */
PyObject *lt_py_add_columns(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != 6) {
        return PyErr_Format(PyExc_TypeError, "add_columns: expected ColumnSums and rows, got %zd arguments. Pass both.", count);
    }
    holding all = {.held = 0};
    PyObject *result = NULL;
    Py_buffer *of[6], *rows;
    for (int i = 0; i < 6; i++) {
        of[i] = hold(&all, PyTuple_GetItem(args[0], i), "sums", i < 5 ? "d" : "lq", 8, i ? PyBUF_WRITABLE : 0);
        if (of[i] == NULL) goto end;
    }
    if ((rows = hold(&all, args[1], "rows", "?BbHhIiLlQqefd", 0, 0)) == NULL) goto end;
    int64_t columns = of[0]->len / 8, items = rows->len / rows->itemsize;
    int fine = columns > 0 && items % columns == 0;
    for (int i = 1; i < 6; i++) fine = fine && of[i]->len == of[0]->len;
    if (!fine) {
        bad_number("rows", "whole rows of as many columns as every sum", (long long)items);
        goto end;
    }
    lt_columns to = {.kind = number_of(rows), .columns = columns, .guess = of[0]->buf, .total = of[1]->buf, .squares = of[2]->buf, .low = of[3]->buf, .high = of[4]->buf, .nan = of[5]->buf};
    Py_BEGIN_ALLOW_THREADS
    lt_add_columns(&to, rows->buf, items / columns);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
end:
    let_go(&all);
    return result;
}
