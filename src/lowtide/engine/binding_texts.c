/* Python's door to texts.c: buffers held, memory made, the GIL released. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "binding_texts.h"
#include "texts.h"

#include <stdlib.h>
#include <string.h>

#define ARGUMENTS 5
#define FEW 64

static int hold(PyObject *object, Py_buffer *view, lt_bytes *of) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS) != 0) return 0;
    *of = (lt_bytes){view->buf, view->len};
    return 1;
}

/* Where code points of `ranges` begin, in memory of their own; NULL with -1: not UTF-8, with -2: no memory. */
static int64_t *places_of(lt_bytes text, lt_bytes ranges, int64_t *count) {
    int64_t few[FEW], pairs = ranges.size / 8, *places = NULL;
    const uint32_t *from = (const uint32_t *)ranges.at;
    *count = lt_find_code_points(text, from, pairs, few, FEW);
    if (*count < 0) return NULL;
    places = malloc((size_t)(*count + 1) * 8);
    if (places == NULL) *count = -2;
    else if (*count <= FEW) memcpy(places, few, (size_t)*count * 8);
    else lt_find_code_points(text, from, pairs, places, *count);
    return places;
}

static int pairs_of(lt_bytes ranges, const char *name) {
    if (ranges.size % 8 == 0) return 1;
    PyErr_Format(PyExc_ValueError, "%s: expected ranges of pairs of uint32, got %lld bytes. Check the numbers of this call.", name, (long long)ranges.size);
    return 0;
}

/* joined_texts(block, key, between, end, ranges): (text, documents, empty, where code points of ranges begin), or None. A key that is None: no JSON. */
PyObject *lt_py_joined_texts(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != ARGUMENTS) return PyErr_Format(PyExc_TypeError, "joined_texts: expected 5 arguments, got %zd. Pass all.", count);
    Py_buffer views[ARGUMENTS];
    lt_bytes of[ARGUMENTS] = {{NULL, 0}};
    int held[ARGUMENTS] = {0}, json = args[1] != Py_None, fine = 0;
    int64_t odd = -1, *places = NULL;
    PyObject *result = NULL;
    lt_joined to = {0};
    for (int i = 0; i < ARGUMENTS; i++) {
        if (i == 1 && !json) continue;
        if (!hold(args[i], &views[i], &of[i])) goto end;
        held[i] = 1;
    }
    if (of[2].size == 0 || of[3].size == 0) {
        PyErr_SetString(PyExc_ValueError, "joined_texts: expected separators, got none. Check the numbers of this call.");
        goto end;
    }
    if (!pairs_of(of[4], "joined_texts")) goto end;
    Py_BEGIN_ALLOW_THREADS
    to.out = malloc((size_t)lt_joined_room(of[0], of[2], of[3]));
    fine = to.out == NULL ? 0 : json ? lt_join_json(of[0], of[1], of[3], &to) : lt_join_lines(of[0], of[2], of[3], &to);
    fine = fine && (!json || lt_find_code_points(of[0], NULL, 0, NULL, 0) >= 0); /* other fields must be UTF-8 too */
    if (fine) places = places_of((lt_bytes){to.out, to.size}, of[4], &odd);
    Py_END_ALLOW_THREADS
    if (to.out == NULL || odd == -2) {
        PyErr_NoMemory();
    } else if (odd < 0) {
        result = Py_NewRef(Py_None);
    } else {
        result = Py_BuildValue("(y#LLy#)", (char *)to.out, (Py_ssize_t)to.size, (long long)to.documents, (long long)to.empty, (char *)places, (Py_ssize_t)odd * 8);
    }
end:
    free(places);
    free(to.out);
    for (int i = 0; i < ARGUMENTS; i++) {
        if (held[i]) PyBuffer_Release(&views[i]);
    }
    return result;
}

/* code_points(text, ranges): where code points of ranges begin, as int64; None: not UTF-8. */
PyObject *lt_py_code_points(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "code_points: expected 2 arguments, got %zd. Pass both.", count);
    Py_buffer views[2];
    lt_bytes text, ranges;
    int64_t odd = -2, *places;
    PyObject *result = NULL;
    if (!hold(args[0], &views[0], &text)) return NULL;
    if (!hold(args[1], &views[1], &ranges)) goto text;
    if (!pairs_of(ranges, "code_points")) goto ranges;
    Py_BEGIN_ALLOW_THREADS
    places = places_of(text, ranges, &odd);
    Py_END_ALLOW_THREADS
    if (odd == -2) PyErr_NoMemory();
    else result = odd < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((char *)places, (Py_ssize_t)odd * 8);
    free(places);
ranges:
    PyBuffer_Release(&views[1]);
text:
    PyBuffer_Release(&views[0]);
    return result;
}

/* string_units(text, first): where whole units of a JSON string end, which begin there; a quote is none. */
PyObject *lt_py_string_units(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "string_units: expected 2 arguments, got %zd. Pass both.", count);
    long long first = PyLong_AsLongLong(args[1]), found;
    Py_buffer view;
    lt_bytes text;
    if (PyErr_Occurred() || !hold(args[0], &view, &text)) return NULL;
    first = first < 0 ? 0 : first;
    found = first < text.size ? lt_string_units(text, first) : first;
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(found);
}

/* cut_after(text, mark, end): the first place where a document may be cut between words; -1: none. */
PyObject *lt_py_cut_after(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "cut_after: expected 3 arguments, got %zd. Pass all.", count);
    long long mark = PyLong_AsLongLong(args[1]), end = PyLong_AsLongLong(args[2]), found;
    Py_buffer view;
    lt_bytes text;
    if (PyErr_Occurred() || !hold(args[0], &view, &text)) return NULL;
    mark = mark < 0 ? 0 : mark;
    found = lt_cut_after(text, mark, end > text.size ? text.size : end);
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(found);
}
