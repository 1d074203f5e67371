/* Python's door to texts.c: buffers held, memory made, the GIL released. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "binding_texts.h"
#include "texts.h"

#include <stdlib.h>

#define ARGUMENTS 5

/* joined_texts(block, key, between, end, ranges): (text, documents, empty, holds a code point of ranges?), or None. A key that is None: no JSON. */
PyObject *lt_py_joined_texts(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != ARGUMENTS) return PyErr_Format(PyExc_TypeError, "joined_texts: expected 5 arguments, got %zd. Pass all.", count);
    Py_buffer views[ARGUMENTS];
    lt_bytes of[ARGUMENTS] = {{NULL, 0}};
    int held[ARGUMENTS] = {0}, json = args[1] != Py_None, holds = -1;
    PyObject *result = NULL;
    lt_joined to = {0};
    for (int i = 0; i < ARGUMENTS; i++) {
        if (i == 1 && !json) continue;
        if (PyObject_GetBuffer(args[i], &views[i], PyBUF_C_CONTIGUOUS) != 0) goto end;
        held[i] = 1;
        of[i] = (lt_bytes){views[i].buf, views[i].len};
    }
    if (of[2].size == 0 || of[3].size == 0 || of[4].size % 8) {
        PyErr_SetString(PyExc_ValueError, "joined_texts: expected separators and pairs of uint32, got other sizes. Check the numbers of this call.");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    to.out = malloc((size_t)lt_joined_room(of[0], of[2], of[3]));
    int fine = to.out != NULL && (json ? lt_join_json(of[0], of[1], of[3], &to) : lt_join_lines(of[0], of[2], of[3], &to));
    if (fine) holds = lt_holds_code_point((lt_bytes){to.out, to.size}, (const uint32_t *)of[4].at, of[4].size / 8);
    if (fine && json && holds >= 0) holds = lt_holds_code_point(of[0], NULL, 0) < 0 ? -1 : holds; /* other fields too */
    Py_END_ALLOW_THREADS
    if (to.out == NULL) {
        PyErr_NoMemory();
    } else if (holds < 0) {
        result = Py_NewRef(Py_None);
    } else {
        result = Py_BuildValue("(y#LLO)", (char *)to.out, (Py_ssize_t)to.size, (long long)to.documents, (long long)to.empty, holds ? Py_True : Py_False);
    }
end:
    free(to.out);
    for (int i = 0; i < ARGUMENTS; i++) {
        if (held[i]) PyBuffer_Release(&views[i]);
    }
    return result;
}
