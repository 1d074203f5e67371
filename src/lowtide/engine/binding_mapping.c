/* Mapping: a file's bytes in the address space, as a read-only buffer; unmapped when nobody has a view of it. */
#include "binding.h"

#include <string.h>
#include <sys/stat.h>

typedef struct {
    PyObject_HEAD
    lt_mapping mapping;
} mapping_object;

static PyObject *new_mapping(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"fd", "size", "shifted", "scattered", NULL};
    int fd, shifted, scattered, error;
    long long size;
    struct stat found;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iLpp", names, &fd, &size, &shifted, &scattered)) return NULL;
    if (size < 1 || size > MOST_OFFSET) return lt_bad_value("size", "1 or more bytes of a file", size), NULL;
    if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && size > found.st_size) {
        return lt_bad_value("size", "at most the bytes of the file", size), NULL;
    }
    mapping_object *self = (mapping_object *)lt_allocated(type);
    if (self == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = lt_map(&self->mapping, fd, size, shifted, scattered);
    Py_END_ALLOW_THREADS
    if (error == 0) return (PyObject *)self;
    Py_DECREF(self);
    return lt_system_error(error, "mapping: expected a file that can be mapped, got a refusal (%s). Read it instead%s.", strerror(error), "");
}

static int mapping_buffer(PyObject *object, Py_buffer *view, int flags) {
    lt_mapping *mapping = &((mapping_object *)object)->mapping;
    return PyBuffer_FillInfo(view, object, mapping->at, mapping->size, 1, flags);
}

static PyObject *mapping_take_back(PyObject *object, PyObject *args) {
    lt_mapping *mapping = &((mapping_object *)object)->mapping;
    long long first, length;
    int error;
    if (!PyArg_ParseTuple(args, "LL", &first, &length)) return NULL;
    if (first < 0 || length < 0 || first > mapping->size - length) return lt_bad_value("first", "bytes of the mapping", first), NULL;
    Py_BEGIN_ALLOW_THREADS
    error = lt_take_back(mapping, first, length);
    Py_END_ALLOW_THREADS
    if (error) return lt_system_error(error, "mapping: expected the kernel to take pages back, got a refusal (%s). Read it instead%s.", strerror(error), "");
    Py_RETURN_NONE;
}

static void mapping_dealloc(PyObject *object) {
    lt_unmap(&((mapping_object *)object)->mapping);
    lt_freed(object);
}

static PyMethodDef mapping_methods[] = {
    {"take_back", mapping_take_back, METH_VARARGS, "take_back(first, length): let the kernel have the page tables of these bytes back, whole."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot mapping_slots[] = {{Py_tp_new, new_mapping}, {Py_tp_dealloc, mapping_dealloc}, {Py_tp_methods, mapping_methods}, {Py_bf_getbuffer, mapping_buffer},
                                      {Py_tp_doc, "Mapping(fd, size, shifted, scattered): the first bytes of a file, read-only."}, {0, NULL}};
PyType_Spec lt_mapping_spec = {"lowtide.engine._core.Mapping", sizeof(mapping_object), 0, Py_TPFLAGS_DEFAULT, mapping_slots};
