/* What the binding's files share: a call's arguments, checked and copied, and how its answer is told to Python. */
#ifndef LOWTIDE_BINDING_H
#define LOWTIDE_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "queue.h"

#define LT_FEW 256 /* runs whose numbers need no memory of their own */
#define MOST_OFFSET (INT64_MAX - (1 << 20)) /* rounding to pages and blocks must not overflow */

extern const char *const lt_ways[LT_WAYS];

/* One call: its numbers in copies, its targets held. */
typedef struct {
    lt_call call;
    void *memory;      /* the copies where they are many */
    Py_buffer held[4]; /* targets, and a mapping */
    int holding;
    Py_buffer *many; /* where there are more targets than that */
    int64_t how_many;
    int64_t few[4 * LT_FEW];
} lt_job;

typedef struct {
    int way;
    unsigned depth;
    int64_t staging, alignment;
} lt_settings;

typedef struct {
    PyThreadState *state;
    pid_t process;
    int raised;
} lt_released;

/* binding_call.c; 0, or -1 with an exception */
int lt_bad_value(const char *name, const char *expected, long long got);
int lt_numbers_of(PyObject *object, const char *name, const char *letters, Py_ssize_t item, int flags, Py_buffer *view);
void lt_job_begin(lt_job *job);
void lt_job_end(lt_job *job);
int lt_parse_runs(PyObject *runs, lt_job *job, int needs_fds);
int lt_parse_target(PyObject *runs, PyObject *target, lt_job *job, int needs_fds);
int lt_parse_filling(PyObject *const *args, Py_ssize_t count, lt_job *job);
int lt_parse_settings(PyObject *args, PyObject *keywords, lt_settings *to);
PyObject *lt_problem_of(const lt_problem *problem);
PyObject *lt_answer(int status, const lt_call *call);
PyObject *lt_system_error(int error, const char *format, const char *one, const char *other);
int lt_open_queue(lt_queue *queue, const lt_settings *from);
int lt_signalled(void *released);

static inline PyObject *lt_allocated(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

static inline void lt_freed(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Types, each in a file of its own. */
extern PyType_Spec lt_queue_spec, lt_lane_spec, lt_mapping_spec;

#endif
