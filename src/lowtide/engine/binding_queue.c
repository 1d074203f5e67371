/* Queue: fills one target per call, with the GIL released.
 *
 * One call uses the queue at a time; others wait. Signal handlers run in the middle of a call, and one that reads
 * through the same queue must not wait for itself: it is served by a queue of its own that lives as long as its call.
 * A handler that closes the queue is obeyed when the call under way is over. */
#include "binding.h"

#include <pthread.h>

typedef struct {
    PyObject_HEAD
    lt_queue queue;
    pthread_mutex_t lock;    /* held by the call under way */
    _Atomic uintptr_t holder; /* its thread; 0: none */
    lt_settings settings;
    int closed;
} queue_object;

static uintptr_t this_thread(void) {
    static _Thread_local char here; /* an address that no other living thread has */
    return (uintptr_t)&here;
}

static PyObject *new_queue(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    lt_settings settings;
    if (lt_parse_settings(args, keywords, &settings) != 0) return NULL;
    queue_object *self = (queue_object *)lt_allocated(type);
    if (self == NULL) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    self->settings = settings;
    if (lt_open_queue(&self->queue, &settings) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* A child of fork gets a queue of its own, and a lock that nobody holds. */
static int own_queue(queue_object *self) {
    if (self->closed || self->queue.owner == lt_process()) return 0;
    if (self->queue.scratch) lt_queue_close(&self->queue);
    pthread_mutex_init(&self->lock, NULL);
    atomic_store(&self->holder, 0);
    return lt_open_queue(&self->queue, &self->settings);
}

static int fill_held(queue_object *self, lt_call *call) {
    pid_t process = lt_process();
    pthread_mutex_lock(&self->lock);
    atomic_store(&self->holder, this_thread());
    int status = lt_queue_fill(&self->queue, call);
    if (process != lt_process()) return LT_INTERRUPTED; /* a handler forked: the child's queue is another one, not held */
    atomic_store(&self->holder, 0);
    if (self->closed && self->queue.scratch) lt_queue_close(&self->queue);
    pthread_mutex_unlock(&self->lock);
    return status;
}

static int fill_nested(lt_call *call) {
    lt_queue own;
    if (lt_queue_open(&own, LT_ANNOUNCE, 1, 0, 4096) != 0) return LT_NO_MEMORY;
    call->runs.direct = NULL;
    int status = lt_queue_fill(&own, call);
    lt_queue_close(&own);
    return status;
}

static PyObject *queue_fill(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    queue_object *self = (queue_object *)object;
    lt_job one;
    if (own_queue(self) != 0 || lt_parse_filling(args, count, &one) != 0) return NULL;
    int status = LT_REFUSED;
    lt_released here = {.process = lt_process()};
    one.call.interrupted = lt_signalled;
    one.call.token = &here;
    here.state = PyEval_SaveThread();
    if (!self->closed) status = atomic_load(&self->holder) == this_thread() ? fill_nested(&one.call) : fill_held(self, &one.call);
    PyEval_RestoreThread(here.state);
    PyObject *result = here.raised ? NULL : lt_answer(status, &one.call);
    lt_job_end(&one);
    return result;
}

static PyObject *queue_close(PyObject *object, PyObject *unused) {
    (void)unused;
    queue_object *self = (queue_object *)object;
    self->closed = 1;
    if (self->queue.owner != lt_process()) { /* what a parent's thread may hold is not waited for */
        if (self->queue.scratch) lt_queue_close(&self->queue);
        Py_RETURN_NONE;
    }
    if (atomic_load(&self->holder) == this_thread()) Py_RETURN_NONE; /* in a handler: the call under way will close it */
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    if (self->queue.scratch) lt_queue_close(&self->queue);
    pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void queue_dealloc(PyObject *object) {
    queue_object *self = (queue_object *)object;
    if (self->queue.scratch) lt_queue_close(&self->queue);
    lt_freed(object);
}

static PyMethodDef queue_methods[] = {
    {"fill", (PyCFunction)(void (*)(void))queue_fill, METH_FASTCALL, "fill(runs, target, drop): runs found in the page cache, or the first problem."},
    {"close", queue_close, METH_NOARGS, "Give everything back. A call under way is waited for."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot queue_slots[] = {{Py_tp_new, new_queue}, {Py_tp_dealloc, queue_dealloc}, {Py_tp_methods, queue_methods},
                                    {Py_tp_doc, "Queue(way, depth=64, staging=1048576, alignment=4096): reads many runs per call."}, {0, NULL}};
PyType_Spec lt_queue_spec = {"lowtide.engine._core.Queue", sizeof(queue_object), 0, Py_TPFLAGS_DEFAULT, queue_slots};
