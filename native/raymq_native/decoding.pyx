"""Decode records and columns: bodies and their CRC, contiguous slices, and many objects at once."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from raymq_native.octets cimport crc32_of, crc32_prepare, load_i32, load_i64

crc32_prepare()

include "layout.pxi"

cdef enum:
    ID_DIGITS = 32

#: The limit of milliseconds, positive or negative, whose microseconds fit into 64 bits.
cdef int64_t MAX_MILLISECONDS = 9_223_372_036_854_775

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject *, object, void *)
    int PyObject_GenericSetAttr(object, object, object) except -1
    void PyObject_GC_UnTrack(object)
    void PyObject_GC_Track(object)
    int PyObject_GC_IsTracked(object)


def checksums(const uint8_t[::1] data not None, const int64_t[::1] starts not None, const int64_t[::1] lengths not None,
              uint32_t[::1] result not None):
    """Fill `result` with the CRC-32 of each slice of `data`."""
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
    """Fill `result` with the slices of `data`, and `offsets` with the begin of each and the end of the last one."""
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t total = 0
    if ends.shape[0] != count or offsets.shape[0] != count + 1:
        raise ValueError("arrays of different lengths")
    offsets[0] = 0
    with nogil:
        for i in range(count):
            check_slice(starts[i], ends[i], data.shape[0])
            total += ends[i] - starts[i]
            if total > result.shape[0] or total > 0x7FFFFFFF:
                raise ValueError("too little room in the result")
            offsets[i + 1] = <int32_t>total
            if ends[i] > starts[i]:
                memcpy(&result[offsets[i]], &data[starts[i]], ends[i] - starts[i])


cdef inline int check_slice(int64_t start, int64_t end, int64_t length) except -1 nogil:
    if not 0 <= start <= end <= length:
        raise ValueError("a slice outside of the data")
    return 0


def gather_bodies(const uint8_t[::1] records not None, const int64_t[::1] starts not None,
                  const int64_t[::1] body_at not None, const int64_t[::1] lengths not None,
                  int32_t[::1] offsets not None, uint8_t[::1] result not None):
    """Gather the bodies of sound records as `gather`, and compare the CRC of each.

    Returns:
        The number of the first body whose CRC differs from its record's; -1 if there is none.
    """
    cdef Py_ssize_t i, count = starts.shape[0], bad = -1
    cdef int64_t total = 0
    cdef const uint8_t *begin = &records[0] if records.shape[0] else NULL
    cdef uint8_t *to = &result[0] if result.shape[0] else NULL
    if body_at.shape[0] != count or lengths.shape[0] != count or offsets.shape[0] != count + 1:
        raise ValueError("arrays of different lengths")
    offsets[0] = 0
    with nogil:
        for i in range(count):
            check_slice(starts[i] + AT_BODY, body_at[i] + lengths[i], records.shape[0])
            check_slice(starts[i], body_at[i], body_at[i] + lengths[i])
            total += lengths[i]
            if total > result.shape[0] or total > 0x7FFFFFFF:
                raise ValueError("too little room in the result")
            offsets[i + 1] = <int32_t>total
            memcpy(to + offsets[i], begin + body_at[i], lengths[i])
            if bad < 0 and (crc32_of(to + offsets[i], lengths[i]) & CRC_MASK
                            != <uint32_t>load_i32(begin + starts[i] + AT_BODY_CRC)):
                bad = i
    return bad


def heads(const uint8_t[::1] records not None, const int64_t[::1] starts not None,
          const int32_t[::1] sys_flags not None, int32_t[::1] queue_ids not None, int64_t[::1] queue_offsets not None,
          int64_t[::1] born_us not None, int64_t[::1] stored_us not None, uint8_t[::1] ids not None):
    """Fill the last five arguments from the headers of sound records with IPv4 store hosts.

    Args:
        born_us, stored_us: times in microseconds, clamped to 64 bits.
        ids: message ids, 32 upper-case hexadecimal digits each, without separators.
    """
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef const uint8_t *at
    cdef const uint8_t *late
    cdef uint8_t *to
    cdef int digit
    if not (sys_flags.shape[0] == queue_ids.shape[0] == queue_offsets.shape[0] == born_us.shape[0]
            == stored_us.shape[0] == count) or ids.shape[0] != ID_DIGITS * count:
        raise ValueError("arrays of different lengths")
    with nogil:
        for i in range(count):
            check_slice(starts[i], starts[i] + AT_BODY + IPV6_SHIFT if sys_flags[i] & BORN_IPV6
                        else starts[i] + AT_BODY, records.shape[0])
            at = &records[starts[i]]
            late = at + IPV6_SHIFT if sys_flags[i] & BORN_IPV6 else at
            queue_ids[i] = load_i32(at + AT_QUEUE_ID)
            queue_offsets[i] = load_i64(at + AT_QUEUE_OFFSET)
            born_us[i] = microseconds(load_i64(at + AT_BORN_TIMESTAMP))
            stored_us[i] = microseconds(load_i64(late + AT_STORE_TIMESTAMP))
            to = &ids[ID_DIGITS * i]
            put_digits(to, late + AT_STORE_HOST)
            put_digits(to + 2 * STORE_HOST_BYTES, at + AT_PHYSICAL_OFFSET)


cdef inline int64_t microseconds(int64_t milliseconds) noexcept nogil:
    return min(max(milliseconds, -MAX_MILLISECONDS), MAX_MILLISECONDS) * 1000


#: The two digits of each byte.
cdef uint8_t[512] digits

def _spell_digits():
    for octet, (high, low) in enumerate((b"%02X" % octet for octet in range(256))):
        digits[2 * octet], digits[2 * octet + 1] = high, low

_spell_digits()


cdef inline void put_digits(uint8_t *to, const uint8_t *octets) noexcept nogil:
    """Write eight bytes as upper-case hexadecimal digits."""
    cdef int i
    for i in range(8):
        memcpy(to + 2 * i, &digits[2 * octets[i]], 2)


def common_properties(const uint8_t[::1] records not None, const int64_t[::1] properties_at not None,
                      const int64_t[::1] ends not None, list names not None, int64_t[:, ::1] begins not None,
                      int64_t[:, ::1] stops not None):
    """Fill `begins` and `stops` (names x records) with the begin and end of each property's value.

    Args:
        names: the names of all properties, in order, each followed by the separator.

    Returns:
        Whether all records have exactly these properties, each with a terminated value in ASCII.
    """
    cdef Py_ssize_t i, k, count = ends.shape[0], most = len(names)
    cdef const uint8_t *begin = &records[0] if records.shape[0] else NULL
    cdef const int64_t *at = &properties_at[0] if count else NULL
    cdef bytes name
    cdef const char *text
    cdef Py_ssize_t length
    cdef bint alike
    if (properties_at.shape[0] != count or begins.shape[0] != most or stops.shape[0] != most
            or begins.shape[1] != count or stops.shape[1] != count):
        raise ValueError("arrays of different lengths")
    if count == 0:
        return True
    with nogil:
        for i in range(count):
            check_slice(properties_at[i], ends[i], records.shape[0])
    for k in range(most):
        name = names[k]
        text, length = name, len(name)
        with nogil:
            alike = find_values(begin, at, 1 if k else 0, &ends[0], text, length, count, &begins[k, 0], &stops[k, 0])
        if not alike:
            return False
        at = &stops[k, 0]
    for i in range(count):
        if at[i] + (1 if most else 0) != ends[i]:
            return False
    return True


cdef bint find_values(const uint8_t *records, const int64_t *before, int64_t skipped, const int64_t *ends,
                      const char *name, Py_ssize_t length, Py_ssize_t count, int64_t *begins, int64_t *stops
                      ) noexcept nogil:
    """Find the values of one property, which begin `skipped` bytes after `before`; return whether all are sound."""
    cdef Py_ssize_t i
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef const uint8_t *byte
    cdef uint8_t seen
    for i in range(count):
        at, end = records + before[i] + skipped, records + ends[i]
        if end - at <= length or memcmp(at, name, length):
            return False
        at += length
        stop = <const uint8_t *>memchr(at, PAIR_END, end - at)
        if stop == NULL or stop == at or memchr(at, NAME_END, stop - at) != NULL:
            return False
        seen = 0
        byte = at
        while byte < stop:
            seen |= byte[0]
            byte += 1
        if seen >= 0x80:
            return False
        begins[i], stops[i] = at - records, stop - records
    return True


def bodies(const uint8_t[::1] records not None, const int64_t[::1] starts not None,
           const int64_t[::1] body_at not None, const int64_t[::1] lengths not None):
    """Return the bodies of sound records as a list of bytes, and the number of the first one with a wrong CRC, or -1.

    Args:
        starts, body_at, lengths: the begin of each record and of its body in `records`, and the body's length.
    """
    cdef Py_ssize_t i, count = starts.shape[0], bad = -1
    cdef const uint8_t *begin = &records[0] if records.shape[0] else NULL
    cdef object body
    if body_at.shape[0] != count or lengths.shape[0] != count:
        raise ValueError("arrays of different lengths")
    cdef list found = PyList_New(count)
    for i in range(count):
        check_slice(starts[i] + AT_BODY, body_at[i] + lengths[i], records.shape[0])
        check_slice(starts[i] + AT_BODY, body_at[i], records.shape[0])
        body = PyBytes_FromStringAndSize(<const char *>begin + body_at[i], lengths[i])
        Py_INCREF(body)
        PyList_SET_ITEM(found, i, body)
        if bad < 0 and (crc32_of(begin + body_at[i], lengths[i]) & CRC_MASK
                        != <uint32_t>load_i32(begin + starts[i] + AT_BODY_CRC)):
            bad = i
    return found, bad


def filled(type kind not None, tuple names not None, list column not None, object second,
           const int64_t[::1] third not None, object fourth):
    """Return objects of a class with slots, with four slots set: from a list, one value, numbers, and one value.

    They are created without calling the class, and the garbage collector does not track them: do not use it for a class
    whose objects can be part of a reference cycle.
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


def untrack(object value):
    """Stop tracking an object by the garbage collector; until `track` it must not be part of a reference cycle."""
    PyObject_GC_UnTrack(value)


def track(object value):
    """Let the garbage collector track an object again."""
    if not PyObject_GC_IsTracked(value):
        PyObject_GC_Track(value)
