/* Python's door to the C core: the module and its functions. Types have files of their own.
 *
 * Arguments are checked and copied (binding_call.c), the GIL is released once, results are plain tuples. */
#include "binding.h"
#include "binding_arrays.h"
#include "binding_texts.h"
#include "lzf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static PyObject *fill_mapped(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "fill_mapped: expected 3 arguments (mapping, runs, target), got %zd. Pass all of them.", count);
    lt_job one;
    lt_job_begin(&one);
    PyObject *result = NULL;
    Py_buffer *view;
    if (lt_parse_target(args[1], args[2], &one, 0) != 0) goto end;
    view = &one.held[one.holding];
    if (PyObject_GetBuffer(args[0], view, PyBUF_C_CONTIGUOUS) != 0) goto end;
    one.holding++;
    lt_released here = {.process = lt_process()};
    one.call.interrupted = lt_signalled;
    one.call.token = &here;
    here.state = PyEval_SaveThread();
    lt_deliver_mapped(&one.call, view->buf, view->len);
    PyEval_RestoreThread(here.state);
    if (!here.raised) result = one.call.problem.kind == LT_FINE ? Py_NewRef(Py_None) : lt_problem_of(&one.call.problem);
end:
    lt_job_end(&one);
    return result;
}

static PyObject *announce(PyObject *module, PyObject *runs) {
    (void)module;
    lt_job one;
    lt_job_begin(&one);
    if (lt_parse_runs(runs, &one, 1) != 0) return lt_job_end(&one), NULL;
    Py_BEGIN_ALLOW_THREADS
    lt_announce(&one.call.runs, NULL, one.call.runs.count);
    Py_END_ALLOW_THREADS
    lt_job_end(&one);
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
    if (lt_numbers_of(args[0], "numbers", "LQ", 8, PyBUF_WRITABLE, &view[held]) != 0) return NULL;
    many = view[held++].len / 8;
    if (lt_numbers_of(args[2], "constants", "LQ", 8, 0, &view[held]) != 0) goto end;
    int64_t words = view[held++].len / 8;
    if (args[3] != Py_None) {
        if (lt_numbers_of(args[3], "tweaks", "LQ", 8, 0, &view[held]) != 0) goto end;
        held++;
        if (view[2].len != view[0].len) {
            lt_bad_value("tweaks", "as many words as numbers", view[2].len / 8);
            goto end;
        }
    }
    if (n < 2 || n > INT64_MAX || words < 2 || words > 128 || words % 2) {
        lt_bad_value("permute", "n from 2 to 2**63 - 1 and two constants per round", (long long)words);
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

/* unchanged(fd, size, changed): whether the file still is that long, was not written since, and has a name. */
static PyObject *unchanged(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "unchanged: expected 3 arguments, got %zd. Pass all of them.", count);
    long fd = PyLong_AsLong(args[0]);
    long long size = PyLong_AsLongLong(args[1]), changed = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    struct stat found;
    int fine = fd >= 0 && fd <= INT32_MAX && fstat((int)fd, &found) == 0; /* not worth giving the GIL away for */
    fine = fine && found.st_size == size && found.st_nlink > 0;
    return PyBool_FromLong(fine && found.st_ctim.tv_sec * 1000000000LL + found.st_ctim.tv_nsec == changed);
}

/* unpack_lzf(packed, into): bytes that came, or -1 where they are damaged or more than `into` holds. */
static PyObject *unpack_lzf(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "unpack_lzf: expected 2 arguments (packed, into), got %zd. Pass both.", count);
    Py_buffer packed, into;
    if (PyObject_GetBuffer(args[0], &packed, PyBUF_C_CONTIGUOUS) != 0) return NULL;
    if (PyObject_GetBuffer(args[1], &into, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) return PyBuffer_Release(&packed), NULL;
    int64_t came;
    Py_BEGIN_ALLOW_THREADS
    came = lt_unpack_lzf(packed.buf, packed.len, into.buf, into.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&into);
    PyBuffer_Release(&packed);
    return PyLong_FromLongLong(came);
}

static PyObject *unavailable(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *result = PyDict_New();
    for (int i = 0; result && i < LT_WAYS; i++) {
        PyObject *why = PyUnicode_FromString(lt_unavailable(i));
        if (why == NULL || PyDict_SetItemString(result, lt_ways[i], why) != 0) Py_CLEAR(result);
        Py_XDECREF(why);
    }
    return result;
}

static PyMethodDef functions[] = {
    {"fill_mapped", (PyCFunction)(void (*)(void))fill_mapped, METH_FASTCALL, "fill_mapped(mapping, runs, target): None, or the first problem."},
    {"announce", announce, METH_O, "announce(runs): tell the kernel of reads to come."},
    {"permute", (PyCFunction)(void (*)(void))permute, METH_FASTCALL, "permute(numbers, n, constants, tweaks, inverted): in place."},
    {"unchanged", (PyCFunction)(void (*)(void))unchanged, METH_FASTCALL, "unchanged(fd, size, changed): whether the file still is what it was."},
    {"documents_marked", (PyCFunction)(void (*)(void))lt_py_documents_marked, METH_FASTCALL, "documents_marked(planes, x, y, id, begins): the longest run."},
    {"documents_noted", (PyCFunction)(void (*)(void))lt_py_documents_noted, METH_FASTCALL, "documents_noted(planes, marks, begins): the longest run, or None."},
    {"documents_given", (PyCFunction)(void (*)(void))lt_py_documents_given, METH_FASTCALL, "documents_given(planes, begins, closing, padding): the longest run."},
    {"hold_tables", lt_py_hold_tables, METH_O, "hold_tables(tables): what packed_plan takes as their last part."},
    {"packed_plan", (PyCFunction)(void (*)(void))lt_py_packed_plan, METH_FASTCALL, "packed_plan(tables, rows, into, padding): counts, or None."},
    {"packed_close", (PyCFunction)(void (*)(void))lt_py_packed_close, METH_FASTCALL, "packed_close(x, y, begins, closing, padding, pad, eot): the first wrong end."},
    {"locate", (PyCFunction)(void (*)(void))lt_py_locate, METH_FASTCALL, "locate(files, numbers, stride, lengths, fds, offsets, look): False: look closer."},
    {"copy_rows", (PyCFunction)(void (*)(void))lt_py_copy_rows, METH_FASTCALL, "copy_rows(from, offsets, length, into, places): rows to their places."},
    {"crc32", (PyCFunction)(void (*)(void))lt_py_crc32, METH_FASTCALL, "crc32(bytes, crc): as zlib's; None: this processor has nothing faster."},
    {"crc32_of_ids", (PyCFunction)(void (*)(void))lt_py_crc32_of_ids, METH_FASTCALL, "crc32_of_ids(ids, crc): the same of ids as int64."},
    {"read_checked", (PyCFunction)(void (*)(void))lt_py_read_checked, METH_FASTCALL, "read_checked(fd, offset, into, summed, source, vocab, skip): bytes, checksum, the first id outside."},
    {"add_columns", (PyCFunction)(void (*)(void))lt_py_add_columns, METH_FASTCALL, "add_columns(sums, rows): in place."},
    {"joined_texts", (PyCFunction)(void (*)(void))lt_py_joined_texts, METH_FASTCALL, "joined_texts(block, key, between, end, ranges): documents, each followed by end; None: look closer."},
    {"unpack_lzf", (PyCFunction)(void (*)(void))unpack_lzf, METH_FASTCALL, "unpack_lzf(packed, into): bytes that came; -1: damaged."},
    {"code_points", (PyCFunction)(void (*)(void))lt_py_code_points, METH_FASTCALL, "code_points(text, ranges): where code points of ranges begin, as int64; None: not UTF-8."},
    {"string_units", (PyCFunction)(void (*)(void))lt_py_string_units, METH_FASTCALL, "string_units(text, first): where whole units of a JSON string end, which begin there."},
    {"cut_after", (PyCFunction)(void (*)(void))lt_py_cut_after, METH_FASTCALL, "cut_after(text, mark, end): the first place where a document may be cut between words; -1: none."},
    {"unavailable", unavailable, METH_NOARGS, "Each way, and why it cannot be had ('': it can)."},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
    PyType_Spec *specs[] = {&lt_queue_spec, &lt_lane_spec, &lt_mapping_spec};
    for (int i = 0; i < 3; i++) {
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

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "lowtide.engine._core", "Reads without the GIL.", 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
