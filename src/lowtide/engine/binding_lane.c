/* Lane: a queue with a thread that fills one target while its owner does something else.
 *
 * The thread never touches Python. Whoever lets the lane go waits until the thread has put its reads down, so nobody
 * writes into a target later; a child of fork has no such thread and only forgets what its parent had under way. */
#include "binding.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IDLE, ASKED, RUNNING, FINISHED };

typedef struct {
    PyObject_HEAD
    lt_queue queue;
    lt_settings settings;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int threaded, ending, state, status;
    pid_t owner;
    lt_job *work; /* owned by this object; the thread uses it while ASKED or RUNNING */
} lane;

static void fresh_locks(lane *self) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    self->owner = lt_process();
}

static void *work_on(void *argument) {
    lane *self = argument;
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

static void drop_work(lane *self) {
    lt_job *work = self->work;
    self->work = NULL;
    self->state = IDLE;
    if (work) lt_job_end(work), free(work);
}

/* In a child of fork: the parent's thread is not here and its queue must not be touched; what is left are our
 * references to the target. Returns 1 when something had been under way. */
static int left_behind(lane *self) {
    if (self->owner == lt_process()) return 0;
    int had = self->state != IDLE;
    drop_work(self);
    if (self->queue.scratch) lt_queue_close(&self->queue);
    self->threaded = self->ending = 0;
    fresh_locks(self);
    return had;
}

/* Waits a while, without the GIL and without anything that a child of fork or an interpreter at its end could miss. */
static int wait_a_while(lane *self) {
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

static int is_working(lane *self) {
    pthread_mutex_lock(&self->lock);
    int working = self->state != IDLE;
    pthread_mutex_unlock(&self->lock);
    return working;
}

static int is_finished(lane *self) {
    pthread_mutex_lock(&self->lock);
    int finished = self->state == FINISHED;
    pthread_mutex_unlock(&self->lock);
    return finished;
}

static void stop_work(lane *self) {
    if (self->work) atomic_store(&self->work->call.stop, 1);
    PyThreadState *state = PyEval_SaveThread();
    while (!wait_a_while(self)) {}
    PyEval_RestoreThread(state);
    if (is_working(self)) drop_work(self);
}

static int begin_thread(lane *self) {
    if (self->threaded) return 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that Python knows */
    int error = pthread_create(&self->thread, NULL, work_on, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        lt_system_error(error, "lane: expected room for a thread, got %s. Close other programs or read without %s.", strerror(error), "it");
        return -1;
    }
    self->threaded = 1;
    return 0;
}

static PyObject *lane_start(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    lane *self = (lane *)object;
    left_behind(self);
    if (self->ending) return lt_answer(LT_REFUSED, NULL);
    if (is_working(self)) {
        PyErr_SetString(PyExc_RuntimeError, "lane: expected nothing under way, got a second start. Call wait() first.");
        return NULL;
    }
    if (self->queue.scratch == NULL && lt_open_queue(&self->queue, &self->settings) != 0) return NULL;
    lt_job *work = malloc(sizeof *work);
    if (work == NULL) return PyErr_NoMemory();
    if (lt_parse_filling(args, count, work) != 0) return free(work), NULL;
    if (begin_thread(self) != 0) return lt_job_end(work), free(work), NULL;
    pthread_mutex_lock(&self->lock);
    self->work = work;
    self->state = ASKED;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *lane_wait(PyObject *object, PyObject *unused) {
    (void)unused;
    lane *self = (lane *)object;
    if (left_behind(self)) {
        PyErr_SetString(PyExc_RuntimeError, "lane: expected a batch started in this process, got one of the process it was forked from. Start it again.");
        return NULL;
    }
    for (int over = is_finished(self); !over;) { /* the usual case is over before it is asked for */
        Py_BEGIN_ALLOW_THREADS
        over = wait_a_while(self);
        Py_END_ALLOW_THREADS
        if (!over && PyErr_CheckSignals() != 0) return NULL; /* it goes on: wait() again, or drop the lane */
    }
    if (!is_working(self)) {
        PyErr_SetString(PyExc_RuntimeError, "lane: expected something under way, got nothing to wait for. Start it first.");
        return NULL;
    }
    PyObject *result;
    if (self->status == LT_INTERRUPTED) {
        PyErr_SetString(PyExc_RuntimeError, "lane: expected a filled target, got a cancelled one. Start it again.");
        result = NULL;
    } else {
        result = lt_answer(self->status, &self->work->call);
    }
    drop_work(self);
    return result;
}

static void end_lane(lane *self) {
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

static PyObject *lane_close(PyObject *self, PyObject *unused) {
    (void)unused;
    end_lane((lane *)self);
    Py_RETURN_NONE;
}

static PyObject *new_lane(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    lt_settings settings;
    if (lt_parse_settings(args, keywords, &settings) != 0) return NULL;
    lane *self = (lane *)lt_allocated(type);
    if (self == NULL) return NULL;
    self->settings = settings;
    fresh_locks(self);
    if (lt_open_queue(&self->queue, &settings) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void lane_dealloc(PyObject *object) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace); /* waiting must not lose the exception that is on its way */
    end_lane((lane *)object);
    PyErr_Restore(kind, value, trace);
    lt_freed(object);
}

static PyMethodDef lane_methods[] = {
    {"start", (PyCFunction)(void (*)(void))lane_start, METH_FASTCALL, "start(runs, target, drop): Queue.fill of these in the lane's thread."},
    {"wait", lane_wait, METH_NOARGS, "Wait for what was started; what fill would have given."},
    {"close", lane_close, METH_NOARGS, "Stop what was started, end the thread and give everything back."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot lane_slots[] = {{Py_tp_new, new_lane}, {Py_tp_dealloc, lane_dealloc}, {Py_tp_methods, lane_methods},
                                   {Py_tp_doc, "Lane(way, depth=64, staging=1048576, alignment=4096): a queue with a thread."}, {0, NULL}};
PyType_Spec lt_lane_spec = {"lowtide.engine._core.Lane", sizeof(lane), 0, Py_TPFLAGS_DEFAULT, lane_slots};
