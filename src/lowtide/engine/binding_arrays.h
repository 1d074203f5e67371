/* What works on arrays of numbers alone (documents.c, packed.c, located.c, columns.c, checksum.c), as Python calls it; binding.c lists them. */
#ifndef LOWTIDE_BINDING_ARRAYS_H
#define LOWTIDE_BINDING_ARRAYS_H

#include <Python.h>

PyObject *lt_py_documents_marked(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_documents_noted(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_documents_given(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_hold_tables(PyObject *module, PyObject *tables);
PyObject *lt_py_packed_plan(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_packed_close(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_locate(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_copy_rows(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_crc32(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_crc32_of_ids(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_read_checked(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *lt_py_add_columns(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
