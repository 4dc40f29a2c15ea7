"""Records and columns taken apart: bodies with their CRC compared, slices side by side, objects made by the thousand."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from raymq_native.octets cimport crc32_of, crc32_prepare, load_i32

crc32_prepare()

cdef enum:
    AT_BODY_CRC = 8
    HEADER_BYTES = 88
    CRC_MASK = 0x7FFFFFFF

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject *, object, void *)
    int PyObject_GenericSetAttr(object, object, object) except -1
    void PyObject_GC_UnTrack(object)


def checksums(const uint8_t[::1] data not None, const int64_t[::1] starts not None, const int64_t[::1] lengths not None,
              uint32_t[::1] result not None):
    """Fill `result` with the CRC-32 of each text of `data`."""
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef const uint8_t *begin = &data[0] if data.shape[0] else NULL
    if lengths.shape[0] != count or result.shape[0] != count:
        raise ValueError("arrays of different lengths")
    for i in range(count):
        check_slice(starts[i], starts[i] + lengths[i], data.shape[0])
    with nogil:
        for i in range(count):
            result[i] = crc32_of(begin + starts[i], lengths[i])


def gather(const uint8_t[::1] data not None, const int64_t[::1] starts not None, const int64_t[::1] ends not None,
           int32_t[::1] offsets not None, uint8_t[::1] result not None):
    """Fill `result` with the slices of `data`, one behind the other, and `offsets` with where each begins and the last ends."""
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t total = 0
    if ends.shape[0] != count or offsets.shape[0] != count + 1:
        raise ValueError("arrays of different lengths")
    offsets[0] = 0
    for i in range(count):
        check_slice(starts[i], ends[i], data.shape[0])
        total += ends[i] - starts[i]
        if total > result.shape[0] or total > 0x7FFFFFFF:
            raise ValueError("too little room")
        offsets[i + 1] = <int32_t>total
    with nogil:
        for i in range(count):
            if ends[i] > starts[i]:
                memcpy(&result[offsets[i]], &data[starts[i]], ends[i] - starts[i])


cdef inline int check_slice(int64_t start, int64_t end, int64_t length) except -1:
    if not 0 <= start <= end <= length:
        raise ValueError("a slice outside of the data")
    return 0


def bodies(const uint8_t[::1] records not None, const int64_t[::1] starts not None,
           const int64_t[::1] body_at not None, const int64_t[::1] lengths not None):
    """The bodies of sound records, as a list of bytes, and the number of the first one that has another CRC; -1 = none.

    Args:
        starts, body_at, lengths: where each record and its body begin in `records`, and the body's length.
    """
    cdef Py_ssize_t i, count = starts.shape[0], bad = -1
    cdef const uint8_t *begin = &records[0] if records.shape[0] else NULL
    cdef object body
    if body_at.shape[0] != count or lengths.shape[0] != count:
        raise ValueError("arrays of different lengths")
    cdef list found = PyList_New(count)
    for i in range(count):
        check_slice(starts[i] + HEADER_BYTES, body_at[i] + lengths[i], records.shape[0])
        check_slice(starts[i] + HEADER_BYTES, body_at[i], records.shape[0])
        body = PyBytes_FromStringAndSize(<const char *>begin + body_at[i], lengths[i])
        Py_INCREF(body)
        PyList_SET_ITEM(found, i, body)
        if bad < 0 and (crc32_of(begin + body_at[i], lengths[i]) & CRC_MASK
                        != <uint32_t>load_i32(begin + starts[i] + AT_BODY_CRC)):
            bad = i
    return found, bad


def filled(type kind not None, tuple names not None, list column not None, object second,
           const int64_t[::1] third not None, object fourth):
    """Objects of a class with slots, four of them filled: with a list's values, one value, numbers, one value.

    They are made without calling the class, and the garbage collector does not look at them: of a class whose objects
    can be part of a circle none must be made so.
    """
    cdef Py_ssize_t i, count = len(column)
    cdef object made
    cdef tuple nothing = ()
    if third.shape[0] != count:
        raise ValueError("columns of different lengths")
    first_name, second_name, third_name, fourth_name = names
    cdef list found = PyList_New(count)
    for i in range(count):
        made = (<PyTypeObject *>kind).tp_new(<PyTypeObject *>kind, nothing, NULL)
        PyObject_GenericSetAttr(made, first_name, column[i])
        PyObject_GenericSetAttr(made, second_name, second)
        PyObject_GenericSetAttr(made, third_name, third[i])
        PyObject_GenericSetAttr(made, fourth_name, fourth)
        PyObject_GC_UnTrack(made)
        Py_INCREF(made)
        PyList_SET_ITEM(found, i, made)
    return found
