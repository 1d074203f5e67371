/* Python's door to the C core: arguments checked and copied, the GIL released once, results as plain tuples.
 *
 * Numbers (descriptors, offsets, lengths, targets) are copied before they are checked: another thread, or the target
 * itself, may change the caller's arrays while the GIL is released. Only targets are written in place; their buffers
 * are held until nobody can write into them any more. All state hangs on objects, none is static. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "binding_arrays.h"
#include "queue.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const WAYS[LT_WAYS] = {"read", "announce", "threads", "aio", "uring"};
static const char *const SOURCES[LT_SOURCES] = {"uint8", "uint16", "uint32", "int32", "int64"};
#define MOST_OFFSET (INT64_MAX - (1 << 20)) /* rounding to pages and blocks must not overflow */
#define MOST_DEPTH 4096

/* ---- One call's arguments ------------------------------------------------------------------------------------ */

typedef struct {
    lt_call call;
    void *memory;         /* copies of the numbers */
    Py_buffer held[4];    /* targets, and a mapping */
    int holding;
} job;

static void end_job(job *one) {
    for (int i = 0; i < one->holding; i++) PyBuffer_Release(&one->held[i]);
    lt_call_end(&one->call);
    free(one->memory);
    one->holding = 0;
    one->memory = NULL;
}

static int is_format(const Py_buffer *view, const char *letters, Py_ssize_t item) {
    const char *format = view->format ? view->format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    return view->itemsize == item && format[0] && !format[1] && strchr(letters, format[0]) != NULL;
}

/* A one-dimensional, contiguous array of numbers of this kind. */
static int numbers_of(PyObject *object, const char *name, const char *letters, Py_ssize_t item, int flags, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) return -1;
    if (is_format(view, letters, item) && view->ndim == 1) return 0;
    PyErr_Format(PyExc_TypeError, "%s: expected a one-dimensional array of %d-byte integers, got format '%s' in %d dimensions. Convert it first.",
                 name, (int)item, view->format ? view->format : "B", view->ndim);
    PyBuffer_Release(view);
    return -1;
}

static int bad_value(const char *name, const char *expected, long long got) {
    PyErr_Format(PyExc_ValueError, "%s: expected %s, got %lld. Check the numbers of this call.", name, expected, got);
    return -1;
}

static int copy_array(PyObject *object, const char *name, const char *letters, Py_ssize_t item, int64_t count, void *to) {
    Py_buffer view;
    if (numbers_of(object, name, letters, item, 0, &view) != 0) return -1;
    int fine = view.len / item == count;
    if (fine && count) memcpy(to, view.buf, (size_t)view.len);
    long long got = view.len / item;
    PyBuffer_Release(&view);
    return fine ? 0 : bad_value(name, "as many numbers as offsets", got);
}

static int copy_fds(PyObject *object, const char *name, int64_t count, int32_t *to, int *one) {
    *one = PyLong_Check(object);
    if (!*one) return copy_array(object, name, "il", 4, count, to);
    int overflow;
    long value = PyLong_AsLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (overflow || value < -1 || value > INT32_MAX) return bad_value(name, "a descriptor", overflow ? -1 : value);
    to[0] = (int32_t)value;
    return 0;
}

static int whole_number(PyObject *object, const char *name, int64_t least, int64_t *to) {
    int overflow;
    *to = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (*to == -1 && PyErr_Occurred()) return -1;
    if (overflow || *to < least || *to > MOST_OFFSET) return bad_value(name, "a number of bytes inside a file", overflow ? -1 : *to);
    return 0;
}

/* Runs(fds, offsets, lengths, targets, direct, stride, shift) into the job; `needs_fds` is false for mappings. */
static int parse_runs(PyObject *runs, job *one, int needs_fds) {
    if (!PyTuple_Check(runs) || PyTuple_Size(runs) != 7) {
        PyErr_SetString(PyExc_TypeError, "runs: expected Runs(fds, offsets, lengths, targets, direct, stride, shift), got something else. Pass a Runs.");
        return -1;
    }
    PyObject *part[7];
    int64_t stride, shift;
    for (int i = 0; i < 7; i++) part[i] = PyTuple_GetItem(runs, i);
    if (whole_number(part[5], "stride", 0, &stride) != 0 || whole_number(part[6], "shift", -MOST_OFFSET, &shift) != 0) return -1;
    Py_buffer view;
    if (numbers_of(part[1], "offsets", "lq", 8, 0, &view) != 0) return -1;
    int64_t count = view.len / 8;
    one->memory = malloc((size_t)(count ? count : 1) * (3 * sizeof(int64_t) + 2 * sizeof(int32_t)));
    if (one->memory == NULL) {
        PyBuffer_Release(&view);
        PyErr_NoMemory();
        return -1;
    }
    int64_t *offsets = one->memory, *lengths = offsets + (count ? count : 1), *targets = lengths + (count ? count : 1);
    int32_t *fds = (int32_t *)(targets + (count ? count : 1)), *direct = fds + (count ? count : 1);
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
            if (one_direct != to->one_fd) return bad_value("direct", "the same shape as fds", one_direct);
            to->direct = direct;
        }
    }
    for (int64_t run = 0; run < count; run++) {
        int64_t length = lt_length(to, run);
        if (length < 0) return bad_value("lengths", "0 or more", length);
        int64_t number = offsets[run];
        if (__builtin_mul_overflow(number, stride, &offsets[run]) || __builtin_add_overflow(offsets[run], shift, &offsets[run])) {
            return bad_value("offsets", "an offset inside a file", number);
        }
        if (offsets[run] < 0 || offsets[run] > MOST_OFFSET - length) return bad_value("offsets", "an offset inside a file", offsets[run]);
    }
    one->call.sink.targets = targets;
    if (part[3] != Py_None) return copy_array(part[3], "targets", "lq", 8, count, targets);
    targets[0] = -1; /* packed: the caller of this function knows in what unit */
    return 0;
}

/* Targets one after the other, or the given ones: all of them inside `capacity`, in units of `item` bytes. */
static int place_runs(job *one, int packed, int64_t capacity, int64_t item) {
    const lt_runs *runs = &one->call.runs;
    int64_t *targets = (int64_t *)one->call.sink.targets, next = 0;
    for (int64_t run = 0; run < runs->count; run++) {
        int64_t length = lt_length(runs, run);
        if (length % item) return bad_value("lengths", "whole tokens", length);
        if (packed) targets[run] = next;
        if (targets[run] < 0 || length / item > capacity || targets[run] > capacity - length / item) {
            return bad_value("targets", "every run inside the target", targets[run]);
        }
        next = targets[run] + length / item;
    }
    return 0;
}

static int parse_gather(PyObject *runs, PyObject *into, job *one, int needs_fds) {
    if (parse_runs(runs, one, needs_fds) != 0) return -1;
    Py_buffer *view = &one->held[0];
    if (PyObject_GetBuffer(into, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) return -1;
    one->holding = 1;
    one->call.sink.into = view->buf;
    return place_runs(one, PyTuple_GetItem(runs, 3) == Py_None, view->len, 1);
}

static int parse_source(PyObject *name, lt_sink *sink) {
    for (int i = 0; i < LT_SOURCES; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, SOURCES[i]) == 0) return sink->source = i, 0;
    }
    PyErr_SetString(PyExc_ValueError, "source: expected uint8, uint16, uint32, int32 or int64, got another type. Gather the bytes and widen them with NumPy.");
    return -1;
}

/* Where the id `mark` is to be noted: its count, 0 to begin with, and the places behind it. */
static int parse_marks(PyObject *marks, PyObject *mark, job *one) {
    if (marks == Py_None) return 0;
    Py_buffer *view = &one->held[one->holding];
    long long id = PyLong_AsLongLong(mark);
    if ((id == -1 && PyErr_Occurred()) || numbers_of(marks, "marks", "lq", 8, PyBUF_WRITABLE, view) != 0) return -1;
    one->holding++;
    if (view->len < 8 || (uintptr_t)view->buf % 8) return bad_value("marks", "room for a count", (long long)view->len);
    lt_sink *sink = &one->call.sink;
    sink->marks = view->buf, sink->marks_room = view->len / 8 - 1, sink->mark = id;
    atomic_store(sink->marks, 0);
    return 0;
}

/* Pair(x, y, length, source, vocab, marks, mark) into the job. */
static int parse_windows(PyObject *runs, PyObject *pair, job *one, int needs_fds) {
    lt_sink *sink = &one->call.sink;
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 7) {
        PyErr_SetString(PyExc_TypeError, "pair: expected Pair(x, y, length, source, vocab, marks, mark), got something else. Pass a Pair.");
        return -1;
    }
    if (parse_runs(runs, one, needs_fds) != 0 || parse_source(PyTuple_GetItem(pair, 3), sink) != 0) return -1;
    long long length = PyLong_AsLongLong(PyTuple_GetItem(pair, 2));
    if (length == -1 && PyErr_Occurred()) return -1;
    if (length < 1 || length > MOST_OFFSET / 8) return bad_value("length", "1 or more", length);
    PyObject *vocab = PyTuple_GetItem(pair, 4);
    if (vocab != Py_None) {
        long long limit = PyLong_AsLongLong(vocab);
        if (limit == -1 && PyErr_Occurred()) return -1;
        if (limit < 1) return bad_value("vocab", "1 or more, or None", limit);
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
        return bad_value("pair", "x and y of the same type and whole rows", (long long)one->held[1].len);
    }
    sink->x = one->held[0].buf, sink->y = one->held[1].buf;
    sink->length = length, sink->wide = (int)wide;
    int64_t rows = one->held[0].len / row, item = lt_item(sink->source), columns = length + 1;
    if (place_runs(one, PyTuple_GetItem(runs, 3) == Py_None, rows * columns, item) != 0) return -1;
    for (int64_t run = 0; run < one->call.runs.count; run++) {
        int64_t tokens = lt_length(&one->call.runs, run) / item;
        if (tokens && sink->targets[run] % columns + tokens > columns) return bad_value("targets", "every run inside one row", sink->targets[run]);
    }
    return parse_marks(PyTuple_GetItem(pair, 5), PyTuple_GetItem(pair, 6), one);
}

static int parse_drop(PyObject *drop, job *one) {
    long value = PyLong_AsLong(drop);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < LT_KEEP || value > LT_DROP_SEQUENTIAL) return bad_value("drop", "0, 1 or 2", value);
    one->call.drop = (int)value;
    return 0;
}

static int parse_filling(PyObject *const *args, Py_ssize_t count, int windows, job *one) {
    memset(one, 0, sizeof *one);
    lt_call_begin(&one->call);
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments (runs, target, drop), got %zd. Pass all of them.", count);
    } else if ((windows ? parse_windows : parse_gather)(args[0], args[1], one, 1) == 0 && parse_drop(args[2], one) == 0) {
        return 0;
    }
    end_job(one);
    return -1;
}

static PyObject *answer(const lt_problem *problem) {
    if (problem->kind == LT_FINE) Py_RETURN_NONE;
    return Py_BuildValue("(sLLL)", problem->kind == LT_BAD_TOKEN ? "token" : "read", (long long)problem->run,
                         (long long)problem->at, (long long)problem->value);
}

static PyObject *answer_of(int status, const job *one) {
    if (status == LT_NO_MEMORY) return PyErr_NoMemory();
    if (status == LT_REFUSED) {
        PyErr_SetString(PyExc_ValueError, "queue: expected an open queue, got a closed one. Open it again.");
        return NULL;
    }
    return answer(&one->call.problem);
}

/* ---- Signals while the GIL is released ------------------------------------------------------------------------ */

typedef struct {
    PyThreadState *state;
    int raised;
} released;

static int signalled(void *token) {
    released *here = token;
    PyEval_RestoreThread(here->state);
    here->raised = PyErr_CheckSignals() != 0;
    here->state = PyEval_SaveThread();
    return here->raised;
}

/* ---- Queue ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    lt_queue queue;
    pthread_mutex_t lock; /* one call uses the queue at a time */
    int way;
    unsigned depth;
    int64_t staging, alignment;
    int closed;
} queue_object;

static int way_named(PyObject *name) {
    for (int i = 0; i < LT_WAYS; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, WAYS[i]) == 0) return i;
    }
    PyErr_SetString(PyExc_ValueError, "way: expected read, announce, threads, aio or uring, got another one. Use read.");
    return -1;
}

typedef struct {
    int way;
    unsigned depth;
    int64_t staging, alignment;
} queue_settings;

static int parse_settings(PyObject *args, PyObject *keywords, queue_settings *to) {
    static char *names[] = {"way", "depth", "staging", "alignment", NULL};
    PyObject *way;
    long long depth = 64, staging = 1 << 20, alignment = 4096;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|LLL", names, &way, &depth, &staging, &alignment)) return -1;
    if ((to->way = way_named(way)) < 0) return -1;
    if (depth < 1 || depth > MOST_DEPTH) return bad_value("depth", "1 to 4096", depth);
    if (alignment < 512 || alignment > 65536 || (alignment & (alignment - 1))) return bad_value("alignment", "a power of two from 512 to 65536", alignment);
    int64_t least = lt_least_staging(to->way, (unsigned)depth, alignment);
    if (staging < least || staging > (1LL << 30)) return bad_value("staging", "room for a page per thread, or for 8 reads", staging);
    to->depth = (unsigned)depth, to->staging = staging, to->alignment = alignment;
    return 0;
}

static int open_queue(lt_queue *queue, const queue_settings *from) {
    int error = lt_queue_open(queue, from->way, from->depth, from->staging, from->alignment);
    if (error == 0) return 0;
    const char *why = lt_unavailable(from->way);
    PyErr_Format(PyExc_OSError, "way: expected one that this machine allows, got %s: %s. Use announce.", WAYS[from->way], *why ? why : strerror(error));
    return -1;
}

static PyObject *allocated(PyTypeObject *type) {
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return make(type, 0);
}

static void freed(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);
    end(object);
    Py_DECREF(type);
}

static PyObject *new_queue(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    queue_settings settings;
    if (parse_settings(args, keywords, &settings) != 0) return NULL;
    queue_object *self = (queue_object *)allocated(type);
    if (self == NULL) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    self->way = settings.way, self->depth = settings.depth, self->staging = settings.staging, self->alignment = settings.alignment;
    self->closed = 1;
    if (open_queue(&self->queue, &settings) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->closed = 0;
    return (PyObject *)self;
}

/* A child of fork gets a queue of its own, and a lock that nobody holds. */
static int own_queue(queue_object *self) {
    if (self->closed || self->queue.owner == getpid()) return 0;
    queue_settings settings = {self->way, self->depth, self->staging, self->alignment};
    lt_queue_close(&self->queue);
    pthread_mutex_init(&self->lock, NULL);
    self->closed = 1;
    if (open_queue(&self->queue, &settings) != 0) return -1;
    self->closed = 0;
    return 0;
}

static PyObject *fill(queue_object *self, PyObject *const *args, Py_ssize_t count, int windows) {
    job one;
    if (own_queue(self) != 0 || parse_filling(args, count, windows, &one) != 0) return NULL;
    released here = {NULL, 0};
    one.call.interrupted = signalled;
    one.call.token = &here;
    here.state = PyEval_SaveThread();
    pthread_mutex_lock(&self->lock);
    int status = lt_queue_fill(&self->queue, &one.call);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(here.state);
    PyObject *result = here.raised ? NULL : answer_of(status, &one);
    end_job(&one);
    return result;
}

static PyObject *queue_gather(PyObject *self, PyObject *const *args, Py_ssize_t count) { return fill((queue_object *)self, args, count, 0); }
static PyObject *queue_windows(PyObject *self, PyObject *const *args, Py_ssize_t count) { return fill((queue_object *)self, args, count, 1); }

static PyObject *queue_close(PyObject *object, PyObject *unused) {
    (void)unused;
    queue_object *self = (queue_object *)object;
    int forked = self->queue.owner != getpid();
    self->closed = 1;
    Py_BEGIN_ALLOW_THREADS
    if (!forked) pthread_mutex_lock(&self->lock);
    if (self->queue.scratch) lt_queue_close(&self->queue);
    if (!forked) pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *counters_of(const lt_queue *queue) {
    return Py_BuildValue("(LLL)", (long long)queue->runs, (long long)queue->cached, (long long)queue->moved);
}

static PyObject *queue_counters(PyObject *self, PyObject *unused) {
    (void)unused;
    return counters_of(&((queue_object *)self)->queue);
}

static void queue_dealloc(PyObject *object) {
    queue_object *self = (queue_object *)object;
    if (self->queue.scratch) lt_queue_close(&self->queue);
    freed(object);
}

static PyMethodDef queue_methods[] = {
    {"gather", (PyCFunction)(void (*)(void))queue_gather, METH_FASTCALL, "gather(runs, into, drop): fill into; None, or the first problem."},
    {"windows", (PyCFunction)(void (*)(void))queue_windows, METH_FASTCALL, "windows(runs, pair, drop): fill x and y; None, or the first problem."},
    {"counters", queue_counters, METH_NOARGS, "Runs asked for, runs found in the page cache, bytes read."},
    {"close", queue_close, METH_NOARGS, "Give everything back. A call under way is waited for."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot queue_slots[] = {{Py_tp_new, new_queue}, {Py_tp_dealloc, queue_dealloc}, {Py_tp_methods, queue_methods},
                                    {Py_tp_doc, "Queue(way, depth=64, staging=1048576, alignment=4096): reads many runs per call."}, {0, NULL}};
static PyType_Spec queue_spec = {"lowtide._native._core.Queue", sizeof(queue_object), 0, Py_TPFLAGS_DEFAULT, queue_slots};

/* ---- Prefetcher ----------------------------------------------------------------------------------------------- */

enum { IDLE, ASKED, RUNNING, FINISHED };

typedef struct {
    PyObject_HEAD
    lt_queue queue;
    queue_settings settings;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int threaded, ending, state, status;
    pid_t owner;
    job *work; /* owned by this object; the thread uses it while ASKED or RUNNING */
} prefetcher;

static void fresh_locks(prefetcher *self) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    self->owner = getpid();
}

static void *prefetch(void *argument) {
    prefetcher *self = argument;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->state != ASKED && !self->ending) pthread_cond_wait(&self->changed, &self->lock);
        if (self->state != ASKED) break;
        self->state = RUNNING;
        pthread_mutex_unlock(&self->lock);
        int status = lt_queue_fill(&self->queue, &self->work->call);
        pthread_mutex_lock(&self->lock);
        self->status = status;
        self->state = FINISHED;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static void drop_work(prefetcher *self) {
    job *work = self->work;
    self->work = NULL;
    self->state = IDLE;
    if (work) end_job(work), free(work);
}

/* In a child of fork: the parent's thread is not here and its queue must not be touched; what is left are our
 * references to the target. Returns 1 when something had been under way. */
static int left_behind(prefetcher *self) {
    if (self->owner == getpid()) return 0;
    int had = self->state != IDLE;
    drop_work(self);
    if (self->queue.scratch) lt_queue_close(&self->queue);
    self->threaded = self->ending = 0;
    fresh_locks(self);
    return had;
}

/* Waits a while, without the GIL and without anything that a child of fork or an interpreter at its end could miss. */
static int wait_a_while(prefetcher *self) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&self->lock);
    while (self->state == ASKED || self->state == RUNNING) {
        if (pthread_cond_timedwait(&self->changed, &self->lock, &until) == ETIMEDOUT) break;
    }
    int over = self->state == IDLE || self->state == FINISHED;
    pthread_mutex_unlock(&self->lock);
    return over;
}

static int is_working(prefetcher *self) {
    pthread_mutex_lock(&self->lock);
    int working = self->state != IDLE;
    pthread_mutex_unlock(&self->lock);
    return working;
}

static int is_finished(prefetcher *self) {
    pthread_mutex_lock(&self->lock);
    int finished = self->state == FINISHED;
    pthread_mutex_unlock(&self->lock);
    return finished;
}

static void stop_work(prefetcher *self) {
    if (self->work) atomic_store(&self->work->call.stop, 1);
    PyThreadState *state = PyEval_SaveThread();
    while (!wait_a_while(self)) {}
    PyEval_RestoreThread(state);
    if (is_working(self)) drop_work(self);
}

static int begin_thread(prefetcher *self) {
    if (self->threaded) return 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that Python knows */
    int error = pthread_create(&self->thread, NULL, prefetch, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        PyErr_Format(PyExc_OSError, "prefetch: expected room for a thread, got %s. Close other programs or read without it.", strerror(error));
        return -1;
    }
    self->threaded = 1;
    return 0;
}

static PyObject *start(prefetcher *self, PyObject *const *args, Py_ssize_t count, int windows) {
    left_behind(self);
    if (self->ending) return answer_of(LT_REFUSED, NULL);
    if (is_working(self)) {
        PyErr_SetString(PyExc_RuntimeError, "prefetch: expected nothing under way, got a second start. Call wait() or cancel() first.");
        return NULL;
    }
    if (self->queue.scratch == NULL && open_queue(&self->queue, &self->settings) != 0) return NULL;
    job *work = malloc(sizeof *work);
    if (work == NULL) return PyErr_NoMemory();
    if (parse_filling(args, count, windows, work) != 0) return free(work), NULL;
    if (begin_thread(self) != 0) return end_job(work), free(work), NULL;
    pthread_mutex_lock(&self->lock);
    self->work = work;
    self->state = ASKED;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *start_gather(PyObject *self, PyObject *const *args, Py_ssize_t count) { return start((prefetcher *)self, args, count, 0); }
static PyObject *start_windows(PyObject *self, PyObject *const *args, Py_ssize_t count) { return start((prefetcher *)self, args, count, 1); }

static PyObject *prefetch_wait(PyObject *object, PyObject *unused) {
    (void)unused;
    prefetcher *self = (prefetcher *)object;
    if (left_behind(self)) {
        PyErr_SetString(PyExc_RuntimeError, "prefetch: expected a batch started in this process, got one of the process it was forked from. Start it again.");
        return NULL;
    }
    for (int over = is_finished(self); !over;) { /* the usual case is over before it is asked for */
        Py_BEGIN_ALLOW_THREADS
        over = wait_a_while(self);
        Py_END_ALLOW_THREADS
        if (!over && PyErr_CheckSignals() != 0) return NULL; /* it goes on: wait() again, or cancel() */
    }
    if (!is_working(self)) {
        PyErr_SetString(PyExc_RuntimeError, "prefetch: expected something under way, got nothing to wait for. Start it first.");
        return NULL;
    }
    PyObject *result;
    if (self->status == LT_INTERRUPTED) {
        PyErr_SetString(PyExc_RuntimeError, "prefetch: expected a filled target, got a cancelled one. Start it again.");
        result = NULL;
    } else {
        result = answer_of(self->status, self->work);
    }
    drop_work(self);
    return result;
}

static PyObject *prefetch_cancel(PyObject *object, PyObject *unused) {
    (void)unused;
    prefetcher *self = (prefetcher *)object;
    if (!left_behind(self)) stop_work(self);
    Py_RETURN_NONE;
}

static PyObject *prefetch_ready(PyObject *object, PyObject *unused) {
    (void)unused;
    prefetcher *self = (prefetcher *)object;
    left_behind(self);
    return PyBool_FromLong(is_finished(self));
}

static void end_prefetcher(prefetcher *self) {
    if (!left_behind(self)) stop_work(self);
    if (self->threaded) {
        PyThreadState *state = PyEval_SaveThread();
        pthread_mutex_lock(&self->lock);
        self->ending = 1;
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->lock);
        pthread_join(self->thread, NULL);
        PyEval_RestoreThread(state);
        self->threaded = 0;
    }
    self->ending = 1;
    if (self->queue.scratch) lt_queue_close(&self->queue);
}

static PyObject *prefetch_close(PyObject *self, PyObject *unused) {
    (void)unused;
    end_prefetcher((prefetcher *)self);
    Py_RETURN_NONE;
}

static PyObject *prefetch_counters(PyObject *object, PyObject *unused) {
    (void)unused;
    return counters_of(&((prefetcher *)object)->queue);
}

static PyObject *new_prefetcher(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    queue_settings settings;
    if (parse_settings(args, keywords, &settings) != 0) return NULL;
    prefetcher *self = (prefetcher *)allocated(type);
    if (self == NULL) return NULL;
    self->settings = settings;
    fresh_locks(self);
    if (open_queue(&self->queue, &settings) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void prefetch_dealloc(PyObject *object) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace); /* waiting must not lose the exception that is on its way */
    end_prefetcher((prefetcher *)object);
    PyErr_Restore(kind, value, trace);
    freed(object);
}

static PyMethodDef prefetch_methods[] = {
    {"start_gather", (PyCFunction)(void (*)(void))start_gather, METH_FASTCALL, "start_gather(runs, into, drop): Queue.gather in a thread."},
    {"start_windows", (PyCFunction)(void (*)(void))start_windows, METH_FASTCALL, "start_windows(runs, pair, drop): Queue.windows in a thread."},
    {"wait", prefetch_wait, METH_NOARGS, "Wait for what was started; its result."},
    {"cancel", prefetch_cancel, METH_NOARGS, "Stop what was started; nobody writes into its target any more."},
    {"ready", prefetch_ready, METH_NOARGS, "Whether wait() would return at once."},
    {"counters", prefetch_counters, METH_NOARGS, "Runs asked for, runs found in the page cache, bytes read."},
    {"close", prefetch_close, METH_NOARGS, "Cancel, end the thread and give everything back."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot prefetch_slots[] = {{Py_tp_new, new_prefetcher}, {Py_tp_dealloc, prefetch_dealloc}, {Py_tp_methods, prefetch_methods},
                                       {Py_tp_doc, "Prefetcher(way, depth=64, staging=1048576, alignment=4096): a queue with a thread."}, {0, NULL}};
static PyType_Spec prefetch_spec = {"lowtide._native._core.Prefetcher", sizeof(prefetcher), 0, Py_TPFLAGS_DEFAULT, prefetch_slots};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static PyObject *mapped(PyObject *const *args, Py_ssize_t count, int windows) {
    job one;
    memset(&one, 0, sizeof one);
    lt_call_begin(&one.call);
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments (mapping, runs, target), got %zd. Pass all of them.", count);
    } else if ((windows ? parse_windows : parse_gather)(args[1], args[2], &one, 0) == 0) {
        Py_buffer *view = &one.held[one.holding];
        if (PyObject_GetBuffer(args[0], view, PyBUF_C_CONTIGUOUS) == 0) {
            one.holding++;
            released here = {NULL, 0};
            one.call.interrupted = signalled;
            one.call.token = &here;
            here.state = PyEval_SaveThread();
            lt_deliver_mapped(&one.call, view->buf, view->len);
            PyEval_RestoreThread(here.state);
            PyObject *result = here.raised ? NULL : answer(&one.call.problem);
            end_job(&one);
            return result;
        }
    }
    end_job(&one);
    return NULL;
}

static PyObject *gather_mapped(PyObject *module, PyObject *const *args, Py_ssize_t count) { return (void)module, mapped(args, count, 0); }
static PyObject *windows_mapped(PyObject *module, PyObject *const *args, Py_ssize_t count) { return (void)module, mapped(args, count, 1); }

static PyObject *announce(PyObject *module, PyObject *runs) {
    (void)module;
    job one;
    memset(&one, 0, sizeof one);
    lt_call_begin(&one.call);
    if (parse_runs(runs, &one, 1) != 0) return end_job(&one), NULL;
    Py_BEGIN_ALLOW_THREADS
    lt_announce(&one.call.runs, NULL, one.call.runs.count);
    Py_END_ALLOW_THREADS
    end_job(&one);
    Py_RETURN_NONE;
}

/* permute(numbers, n, constants, tweaks, inverted): numbers are mapped in place. */
static PyObject *permute(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer view[3];
    int held = 0, inverted;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "permute: expected 5 arguments, got %zd. Pass all of them.", count);
    unsigned long long n = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || (inverted = PyObject_IsTrue(args[4])) < 0) return NULL;
    uint64_t *copies = NULL;
    int64_t many = 0, outside = -1;
    PyObject *result = NULL;
    if (numbers_of(args[0], "numbers", "LQ", 8, PyBUF_WRITABLE, &view[held]) != 0) return NULL;
    many = view[held++].len / 8;
    if (numbers_of(args[2], "constants", "LQ", 8, 0, &view[held]) != 0) goto end;
    int64_t words = view[held++].len / 8;
    if (args[3] != Py_None) {
        if (numbers_of(args[3], "tweaks", "LQ", 8, 0, &view[held]) != 0) goto end;
        held++;
        if (view[2].len != view[0].len) {
            bad_value("tweaks", "as many words as numbers", view[2].len / 8);
            goto end;
        }
    }
    if (n < 2 || n > INT64_MAX || words < 2 || words > 128 || words % 2) {
        bad_value("permute", "n from 2 to 2**63 - 1 and two constants per round", (long long)words);
        goto end;
    }
    /* Mapped in a copy: another thread may write into the caller's array, and a number outside would walk for ever. */
    copies = malloc((size_t)(many + 128) * sizeof *copies);
    if (copies == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    memcpy(copies, view[0].buf, (size_t)many * 8);
    memcpy(copies + many, view[1].buf, (size_t)words * 8);
    Py_BEGIN_ALLOW_THREADS
    outside = lt_permute(copies, many, n, copies + many, (int)(words / 2), held == 3 ? view[2].buf : NULL, inverted);
    Py_END_ALLOW_THREADS
    if (outside >= 0) {
        PyErr_Format(PyExc_ValueError, "numbers: expected numbers below %llu, got %llu. Pass rows of this order.", n, (unsigned long long)copies[outside]);
    } else {
        memcpy(view[0].buf, copies, (size_t)many * 8);
        result = Py_NewRef(Py_None);
    }
end:
    free(copies);
    while (held) PyBuffer_Release(&view[--held]);
    return result;
}

/* unchanged(fd, size, modified): whether the file still is that long, was not written since, and has a name. */
static PyObject *unchanged(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "unchanged: expected 3 arguments, got %zd. Pass all of them.", count);
    long fd = PyLong_AsLong(args[0]);
    long long size = PyLong_AsLongLong(args[1]), modified = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    struct stat found;
    int fine = fd >= 0 && fd <= INT32_MAX && fstat((int)fd, &found) == 0; /* not worth giving the GIL away for */
    fine = fine && found.st_size == size && found.st_nlink > 0;
    return PyBool_FromLong(fine && found.st_mtim.tv_sec * 1000000000LL + found.st_mtim.tv_nsec == modified);
}

static PyObject *unavailable(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *result = PyDict_New();
    for (int i = 0; result && i < LT_WAYS; i++) {
        PyObject *why = PyUnicode_FromString(lt_unavailable(i));
        if (why == NULL || PyDict_SetItemString(result, WAYS[i], why) != 0) Py_CLEAR(result);
        Py_XDECREF(why);
    }
    return result;
}

static PyMethodDef functions[] = {
    {"gather_mapped", (PyCFunction)(void (*)(void))gather_mapped, METH_FASTCALL, "gather_mapped(mapping, runs, into)"},
    {"windows_mapped", (PyCFunction)(void (*)(void))windows_mapped, METH_FASTCALL, "windows_mapped(mapping, runs, pair)"},
    {"announce", announce, METH_O, "announce(runs): tell the kernel of reads to come."},
    {"permute", (PyCFunction)(void (*)(void))permute, METH_FASTCALL, "permute(numbers, n, constants, tweaks, inverted): in place."},
    {"unchanged", (PyCFunction)(void (*)(void))unchanged, METH_FASTCALL, "unchanged(fd, size, modified): whether the file still is what it was."},
    {"documents_marked", (PyCFunction)(void (*)(void))lt_py_documents_marked, METH_FASTCALL, "documents_marked(planes, x, y, id, begins): the longest run."},
    {"documents_noted", (PyCFunction)(void (*)(void))lt_py_documents_noted, METH_FASTCALL, "documents_noted(planes, marks, begins): the longest run, or None."},
    {"documents_given", (PyCFunction)(void (*)(void))lt_py_documents_given, METH_FASTCALL, "documents_given(planes, begins, closing, padding): the longest run."},
    {"find_ids", (PyCFunction)(void (*)(void))lt_py_find_ids, METH_FASTCALL, "find_ids(tokens, id, found, start): how many, and where to go on."},
    {"packed_plan", (PyCFunction)(void (*)(void))lt_py_packed_plan, METH_FASTCALL, "packed_plan(tables, rows, into, padding): counts, or None."},
    {"packed_close", (PyCFunction)(void (*)(void))lt_py_packed_close, METH_FASTCALL, "packed_close(x, y, begins, closing, padding, pad, eot): the first wrong end."},
    {"locate", (PyCFunction)(void (*)(void))lt_py_locate, METH_FASTCALL, "locate(files, numbers, stride, lengths, fds, offsets): False: look closer."},
    {"unavailable", unavailable, METH_NOARGS, "Each way, and why it cannot be had ('': it can)."},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
    PyType_Spec *specs[] = {&queue_spec, &prefetch_spec};
    for (int i = 0; i < 2; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, specs[i], NULL);
        int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) != 0;
        Py_XDECREF(type);
        if (failed) return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lowtide._native._core", "Reads without the GIL.", 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
