/* A call's arguments and its answer.
 *
 * Numbers (descriptors, offsets, lengths, targets) are copied before they are checked: another thread, or the target
 * itself, may change the caller's arrays while the GIL is released. Only targets are written in place; their buffers
 * are held until nobody can write into them any more. */
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const lt_ways[LT_WAYS] = {"read", "announce", "aio", "uring"};
static const char *const SOURCES[LT_SOURCES] = {"uint8", "uint16", "uint32", "int32", "int64"};
#define MOST_DEPTH 4096

void lt_job_begin(lt_job *job) {
    lt_call_begin(&job->call);
    job->memory = job->many = NULL;
    job->holding = 0;
    job->how_many = 0;
}

void lt_job_end(lt_job *job) {
    while (job->holding) PyBuffer_Release(&job->held[--job->holding]);
    while (job->how_many) PyBuffer_Release(&job->many[--job->how_many]);
    free(job->memory);
    free(job->many);
    job->memory = job->many = NULL;
}

static int is_format(const Py_buffer *view, const char *letters, Py_ssize_t item) {
    const char *format = view->format ? view->format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    return view->itemsize == item && format[0] && !format[1] && strchr(letters, format[0]) != NULL;
}

/* A one-dimensional, contiguous array of numbers of this kind. */
int lt_numbers_of(PyObject *object, const char *name, const char *letters, Py_ssize_t item, int flags, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) return -1;
    if (is_format(view, letters, item) && view->ndim == 1) return 0;
    PyErr_Format(PyExc_TypeError, "%s: expected a one-dimensional array of %d-byte integers, got format '%s' in %d dimensions. Convert it first.",
                 name, (int)item, view->format ? view->format : "B", view->ndim);
    PyBuffer_Release(view);
    return -1;
}

int lt_bad_value(const char *name, const char *expected, long long got) {
    PyErr_Format(PyExc_ValueError, "%s: expected %s, got %lld. Check the numbers of this call.", name, expected, got);
    return -1;
}

static int copy_array(PyObject *object, const char *name, const char *letters, Py_ssize_t item, int64_t count, void *to) {
    Py_buffer view;
    if (lt_numbers_of(object, name, letters, item, 0, &view) != 0) return -1;
    int fine = view.len / item == count;
    if (fine && count) memcpy(to, view.buf, (size_t)view.len);
    long long got = view.len / item;
    PyBuffer_Release(&view);
    return fine ? 0 : lt_bad_value(name, "as many numbers as offsets", got);
}

static int copy_fds(PyObject *object, const char *name, int64_t count, int32_t *to, int *one) {
    *one = PyLong_Check(object);
    if (!*one) return copy_array(object, name, "il", 4, count, to);
    int overflow;
    long value = PyLong_AsLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (overflow || value < -1 || value > INT32_MAX) return lt_bad_value(name, "a descriptor", overflow ? -1 : value);
    to[0] = (int32_t)value;
    return 0;
}

static int whole_number(PyObject *object, const char *name, int64_t least, int64_t *to) {
    int overflow;
    *to = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (*to == -1 && PyErr_Occurred()) return -1;
    if (overflow || *to < least || *to > MOST_OFFSET) return lt_bad_value(name, "a number of bytes inside a file", overflow ? -1 : *to);
    return 0;
}

/* Runs(fds, offsets, lengths, targets, direct, stride, shift) into the job; `needs_fds` is false for mappings. */
int lt_parse_runs(PyObject *runs, lt_job *one, int needs_fds) {
    if (!PyTuple_Check(runs) || PyTuple_Size(runs) != 7) {
        PyErr_SetString(PyExc_TypeError, "runs: expected Runs(fds, offsets, lengths, targets, direct, stride, shift), got something else. Pass a Runs.");
        return -1;
    }
    PyObject *part[7];
    int64_t stride, shift;
    for (int i = 0; i < 7; i++) part[i] = PyTuple_GetItem(runs, i);
    if (whole_number(part[5], "stride", 0, &stride) != 0 || whole_number(part[6], "shift", -MOST_OFFSET, &shift) != 0) return -1;
    Py_buffer view;
    if (lt_numbers_of(part[1], "offsets", "lq", 8, 0, &view) != 0) return -1;
    int64_t count = view.len / 8;
    int64_t *offsets = one->few, room = count ? count : 1;
    if (count > LT_FEW && (offsets = one->memory = malloc((size_t)count * 4 * sizeof *offsets)) == NULL) {
        PyBuffer_Release(&view);
        PyErr_NoMemory();
        return -1;
    }
    int64_t *lengths = offsets + room, *targets = lengths + room;
    int32_t *fds = (int32_t *)(targets + room), *direct = fds + room;
    if (count) memcpy(offsets, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    lt_runs *to = &one->call.runs;
    *to = (lt_runs){.count = count, .fds = fds, .offsets = offsets, .lengths = lengths};
    if (PyLong_Check(part[2])) {
        int overflow;
        to->one_length = 1;
        lengths[0] = PyLong_AsLongLongAndOverflow(part[2], &overflow);
        if (lengths[0] == -1 && PyErr_Occurred()) return -1;
        if (overflow) lengths[0] = -1;
    } else if (copy_array(part[2], "lengths", "lq", 8, count, lengths) != 0) {
        return -1;
    }
    if (needs_fds) {
        int one_direct = 0;
        if (copy_fds(part[0], "fds", count, fds, &to->one_fd) != 0) return -1;
        if (part[4] != Py_None) {
            if (copy_fds(part[4], "direct", count, direct, &one_direct) != 0) return -1;
            if (one_direct != to->one_fd) return lt_bad_value("direct", "the same shape as fds", one_direct);
            to->direct = direct;
        }
    }
    for (int64_t run = 0; run < count; run++) {
        int64_t length = lt_length(to, run);
        if (length < 0) return lt_bad_value("lengths", "0 or more", length);
        int64_t number = offsets[run];
        if (__builtin_mul_overflow(number, stride, &offsets[run]) || __builtin_add_overflow(offsets[run], shift, &offsets[run])) {
            return lt_bad_value("offsets", "an offset inside a file", number);
        }
        if (offsets[run] < 0 || offsets[run] > MOST_OFFSET - length) return lt_bad_value("offsets", "an offset inside a file", offsets[run]);
    }
    one->call.sink.targets = targets;
    if (part[3] != Py_None) return copy_array(part[3], "targets", "lq", 8, count, targets);
    targets[0] = -1; /* packed: the caller of this function knows in what unit */
    return 0;
}

/* Targets one after the other, or the given ones: all of them inside `capacity`, in units of `item` bytes. Tokens also
 * inside one row of `columns`; 0: no rows. */
static int place_runs(lt_job *one, int packed, int64_t capacity, int64_t item, int64_t columns) {
    const lt_runs *runs = &one->call.runs;
    int64_t *targets = (int64_t *)one->call.sink.targets, next = 0, many = 0;
    int whole = 0; /* every run is a whole row */
    for (int64_t run = 0; run < runs->count; run++) {
        if (run == 0 || !runs->one_length) {
            int64_t length = lt_length(runs, run);
            if (length % item) return lt_bad_value("lengths", "whole tokens", length);
            many = length / item;
            whole = packed && runs->one_length && many == columns;
        }
        if (packed) targets[run] = next;
        if (targets[run] < 0 || many > capacity || targets[run] > capacity - many) {
            return lt_bad_value("targets", "every run inside the target", targets[run]);
        }
        if (columns && many && !whole && targets[run] % columns + many > columns) {
            return lt_bad_value("targets", "every run inside one row", targets[run]);
        }
        next = targets[run] + many;
    }
    return 0;
}

static int parse_source(PyObject *name, lt_sink *sink) {
    for (int i = 0; i < LT_SOURCES; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, SOURCES[i]) == 0) return sink->source = i, 0;
    }
    PyErr_SetString(PyExc_ValueError, "source: expected uint8, uint16, uint32, int32 or int64, got another type. Gather the bytes and widen them with NumPy.");
    return -1;
}

/* Where the id `mark` is to be noted: its count, 0 to begin with, and the places behind it. */
static int parse_marks(PyObject *marks, PyObject *mark, lt_job *one) {
    if (marks == Py_None) return 0;
    Py_buffer *view = &one->held[one->holding];
    long long id = PyLong_AsLongLong(mark);
    if ((id == -1 && PyErr_Occurred()) || lt_numbers_of(marks, "marks", "lq", 8, PyBUF_WRITABLE, view) != 0) return -1;
    one->holding++;
    if (view->len < 8 || (uintptr_t)view->buf % 8) return lt_bad_value("marks", "room for a count", (long long)view->len);
    lt_sink *sink = &one->call.sink;
    sink->marks = view->buf, sink->marks_room = view->len / 8 - 1, sink->mark = id;
    sink->marks[0] = 0;
    return 0;
}

/* Pair(x, y, length, source, vocab, marks, mark) into the job. */
static int parse_windows(PyObject *runs, PyObject *pair, lt_job *one, int needs_fds) {
    lt_sink *sink = &one->call.sink;
    if (PyTuple_Size(pair) != 7) {
        PyErr_SetString(PyExc_TypeError, "pair: expected Pair(x, y, length, source, vocab, marks, mark), got something else. Pass a Pair.");
        return -1;
    }
    if (lt_parse_runs(runs, one, needs_fds) != 0 || parse_source(PyTuple_GetItem(pair, 3), sink) != 0) return -1;
    int packed = PyTuple_GetItem(runs, 3) == Py_None;
    PyObject *marks = PyTuple_GetItem(pair, 5);
    if (PyTuple_GetItem(pair, 0) == Py_None) {
        if (marks == Py_None) return lt_bad_value("marks", "somewhere to note them where nothing is widened", 0);
        if (place_runs(one, packed, MOST_OFFSET, lt_item(sink->source), 0) != 0) return -1;
        return parse_marks(marks, PyTuple_GetItem(pair, 6), one);
    }
    long long length = PyLong_AsLongLong(PyTuple_GetItem(pair, 2));
    if (length == -1 && PyErr_Occurred()) return -1;
    if (length < 1 || length > MOST_OFFSET / 8) return lt_bad_value("length", "1 or more", length);
    PyObject *vocab = PyTuple_GetItem(pair, 4);
    if (vocab != Py_None) {
        long long limit = PyLong_AsLongLong(vocab);
        if (limit == -1 && PyErr_Occurred()) return -1;
        if (limit < 1) return lt_bad_value("vocab", "1 or more, or None", limit);
        sink->limit = (uint64_t)limit;
    }
    for (int i = 0; i < 2; i++) {
        Py_buffer *view = &one->held[i];
        if (PyObject_GetBuffer(PyTuple_GetItem(pair, i), view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) != 0) return -1;
        one->holding = i + 1;
        if (!is_format(view, "ilq", 4) && !is_format(view, "ilq", 8)) {
            PyErr_SetString(PyExc_TypeError, "pair: expected x and y of int32 or int64, got another type. Make them with NumPy.");
            return -1;
        }
    }
    Py_ssize_t wide = one->held[0].itemsize, row = (Py_ssize_t)length * wide;
    if (one->held[1].itemsize != wide || one->held[1].len != one->held[0].len || one->held[0].len % row) {
        return lt_bad_value("pair", "x and y of the same type and whole rows", (long long)one->held[1].len);
    }
    sink->x = one->held[0].buf, sink->y = one->held[1].buf;
    sink->length = length, sink->wide = (int)wide;
    int64_t rows = one->held[0].len / row, item = lt_item(sink->source), columns = length + 1;
    if (place_runs(one, packed, rows * columns, item, columns) != 0) return -1;
    return parse_marks(marks, PyTuple_GetItem(pair, 6), one);
}

/* Runs of one length into many buffers, each filled to its end. */
static int parse_many(PyObject *targets, lt_job *one) {
    const lt_runs *runs = &one->call.runs;
    int64_t buffers = PyList_Size(targets), length = runs->one_length ? lt_length(runs, 0) : 0, next = 0;
    if (!buffers || length < 1) return lt_bad_value("targets", "buffers for runs of one length", buffers);
    if ((one->many = calloc((size_t)buffers, sizeof *one->many)) == NULL) return PyErr_NoMemory(), -1;
    for (int64_t i = 0; i < buffers; i++) {
        Py_buffer *view = &one->many[i];
        if (PyObject_GetBuffer(PyList_GetItem(targets, i), view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) return -1;
        one->how_many = i + 1;
        if (view->len % length || view->len / length > runs->count - next) return lt_bad_value("targets", "buffers that the runs fill", (long long)view->len);
        int64_t apart = (int64_t)((intptr_t)view->buf - (intptr_t)one->many[0].buf); /* from the first one */
        for (int64_t at = 0; at < view->len; at += length) ((int64_t *)one->call.sink.targets)[next++] = apart + at;
    }
    if (next < runs->count) return lt_bad_value("targets", "room for every run", next);
    one->call.sink.into = one->many[0].buf;
    return 0;
}

/* A Pair, a writable buffer that the bytes are copied into, or a list of such buffers. */
int lt_parse_target(PyObject *runs, PyObject *target, lt_job *one, int needs_fds) {
    if (PyTuple_Check(target)) return parse_windows(runs, target, one, needs_fds);
    if (lt_parse_runs(runs, one, needs_fds) != 0) return -1;
    if (PyList_Check(target)) return parse_many(target, one);
    Py_buffer *view = &one->held[0];
    if (PyObject_GetBuffer(target, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) return -1;
    one->holding = 1;
    one->call.sink.into = view->buf;
    return place_runs(one, PyTuple_GetItem(runs, 3) == Py_None, view->len, 1, 0);
}

static int parse_drop(PyObject *drop, lt_job *one) {
    long value = PyLong_AsLong(drop);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < LT_KEEP || value > LT_KEEP_SEQUENTIAL) return lt_bad_value("drop", "0 to 4", value);
    one->call.drop = (int)value;
    return 0;
}

int lt_parse_filling(PyObject *const *args, Py_ssize_t count, lt_job *one) {
    lt_job_begin(one);
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments (runs, target, drop), got %zd. Pass all of them.", count);
    } else if (lt_parse_target(args[0], args[1], one, 1) == 0 && parse_drop(args[2], one) == 0) {
        return 0;
    }
    lt_job_end(one);
    return -1;
}

static int way_named(PyObject *name) {
    for (int i = 0; i < LT_WAYS; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, lt_ways[i]) == 0) return i;
    }
    PyErr_SetString(PyExc_ValueError, "way: expected read, announce, aio or uring, got another one. Use read.");
    return -1;
}

int lt_parse_settings(PyObject *args, PyObject *keywords, lt_settings *to) {
    static char *names[] = {"way", "depth", "staging", "alignment", NULL};
    PyObject *way;
    long long depth = 64, staging = 1 << 20, alignment = 4096;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|LLL", names, &way, &depth, &staging, &alignment)) return -1;
    if ((to->way = way_named(way)) < 0) return -1;
    if (depth < 1 || depth > MOST_DEPTH) return lt_bad_value("depth", "1 to 4096", depth);
    if (alignment < 512 || alignment > 65536 || (alignment & (alignment - 1))) return lt_bad_value("alignment", "a power of two from 512 to 65536", alignment);
    if (staging < lt_least_staging(to->way, alignment) || staging > (1LL << 30)) return lt_bad_value("staging", "room for 8 reads", staging);
    to->depth = (unsigned)depth, to->staging = staging, to->alignment = alignment;
    return 0;
}

PyObject *lt_problem_of(const lt_problem *problem) {
    return Py_BuildValue("(sLLL)", problem->kind == LT_BAD_TOKEN ? "token" : "read", (long long)problem->run,
                         (long long)problem->at, (long long)problem->value);
}

PyObject *lt_answer(int status, const lt_call *call) {
    if (status == LT_NO_MEMORY) return PyErr_NoMemory();
    if (status == LT_REFUSED) {
        PyErr_SetString(PyExc_ValueError, "queue: expected an open queue, got a closed one. Open it again.");
        return NULL;
    }
    return call->problem.kind == LT_FINE ? PyLong_FromLongLong(call->cached) : lt_problem_of(&call->problem);
}

/* OSError with its errno, so that the caller can tell what to do next. */
PyObject *lt_system_error(int error, const char *format, const char *one, const char *other) {
    PyObject *text = PyUnicode_FromFormat(format, one, other);
    PyObject *problem = text ? PyObject_CallFunction(PyExc_OSError, "iO", error, text) : NULL;
    if (problem) PyErr_SetObject((PyObject *)Py_TYPE(problem), problem);
    Py_XDECREF(problem);
    Py_XDECREF(text);
    return NULL;
}

int lt_open_queue(lt_queue *queue, const lt_settings *from) {
    int error = lt_queue_open(queue, from->way, from->depth, from->staging, from->alignment);
    if (error == 0) return 0;
    const char *why = lt_forbidden(from->way);
    lt_system_error(error, "way: expected one that this machine allows, got %s: %s. Use announce.", lt_ways[from->way], *why ? why : lt_refusal(from->way, error));
    return -1;
}

/* Python's signal handlers, run while a call is under way. */
int lt_signalled(void *token) {
    lt_released *here = token;
    PyEval_RestoreThread(here->state);
    here->raised = PyErr_CheckSignals() != 0;
    int forked = here->process != lt_process();
    if (forked && !here->raised) {
        here->raised = 1;
        PyErr_SetString(PyExc_RuntimeError, "queue: expected the process that began this call, got one that a signal handler forked. Read again.");
    }
    here->state = PyEval_SaveThread();
    return forked ? LT_LEAVE : here->raised ? LT_STOP : 0;
}
