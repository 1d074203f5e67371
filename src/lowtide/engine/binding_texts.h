/* What makes documents of text (texts.c), as Python calls it; binding.c lists it. */
#ifndef LOWTIDE_BINDING_TEXTS_H
#define LOWTIDE_BINDING_TEXTS_H

#include <Python.h>

PyObject *lt_py_joined_texts(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_code_points(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_string_units(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_cut_after(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
