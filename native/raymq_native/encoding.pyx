"""Encode records from bodies and properties: header, body and its CRC, topic, unique key and properties, in this order.

The caller checks limits. For input that these functions do not support (2 GiB of records, properties that are too long,
a value of another type) they return None, and the caller uses its own code.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from raymq_native.messages cimport MessageFields
from raymq_native.octets cimport crc32_of, crc32_prepare, store_i32, store_i64

crc32_prepare()

include "layout.pxi"

cdef enum:
    NUMBER_DIGITS = 12

cdef int64_t MAX_BYTES = 0x7FFFFFFF


cdef struct Frame:
    # The parts that all records of a batch share.
    const uint8_t *header
    const uint8_t *topic
    int64_t topic_bytes
    const uint8_t *key
    int64_t key_bytes


cdef inline int64_t size_of(Frame *frame, int64_t body_bytes, int64_t properties_bytes) noexcept nogil:
    """Return the size of a record; 0 if its properties are too long."""
    cdef int64_t properties = frame.key_bytes + NUMBER_DIGITS + 1 + properties_bytes
    if properties > MAX_PROPERTIES:
        return 0
    return AT_BODY + body_bytes + frame.topic_bytes + 2 + properties


cdef uint8_t *put(uint8_t *to, Frame *frame, int64_t size, const uint8_t *body, int64_t body_bytes, int64_t number,
                  const uint8_t *properties, int64_t properties_bytes) noexcept nogil:
    """Write one record; return the position after it."""
    cdef int64_t length = frame.key_bytes + NUMBER_DIGITS + 1 + properties_bytes
    cdef int digit
    memcpy(to, frame.header, AT_BODY)
    store_i32(to, <int32_t>size)
    store_i32(to + AT_BODY_CRC, <int32_t>(crc32_of(body, body_bytes) & CRC_MASK))
    store_i32(to + AT_BODY_LENGTH, <int32_t>body_bytes)
    to += AT_BODY
    memcpy(to, body, body_bytes)
    to += body_bytes
    memcpy(to, frame.topic, frame.topic_bytes)
    to += frame.topic_bytes
    to[0] = <uint8_t>(length >> 8)
    to[1] = <uint8_t>length
    to += 2
    memcpy(to, frame.key, frame.key_bytes)
    to += frame.key_bytes
    for digit in range(NUMBER_DIGITS):
        to[digit] = b"0123456789ABCDEF"[number >> (4 * (NUMBER_DIGITS - 1 - digit)) & 15]
    to[NUMBER_DIGITS] = PAIR_END
    to += NUMBER_DIGITS + 1
    memcpy(to, properties, properties_bytes)
    return to + properties_bytes


cdef Frame frame_of(bytes header, bytes topic, bytes key):
    cdef Frame frame
    if len(header) != AT_BODY:
        raise ValueError(f"a header of {len(header)} bytes, not {AT_BODY}")
    frame.header = <const uint8_t *>PyBytes_AS_STRING(header)
    frame.topic, frame.topic_bytes = <const uint8_t *>PyBytes_AS_STRING(topic), len(topic)
    frame.key, frame.key_bytes = <const uint8_t *>PyBytes_AS_STRING(key), len(key)
    return frame


def join_columns(bytes header not None, bytes topic not None, bytes key not None, const int64_t[::1] numbers not None,
                 const int32_t[::1] body_offsets not None, const uint8_t[::1] bodies not None,
                 const int32_t[::1] property_offsets, const uint8_t[::1] properties, int32_t[::1] sizes not None):
    """Encode records from two columns of binary values.

    Args:
        header: the header of all records; size, CRC and body length are filled in.
        topic: the topic after its length.
        key: the name of the unique key, the separator, and the prefix before the digits of the numbers.
        numbers: the numbers of the unique keys, 48 bits each.
        body_offsets, bodies: value i lies between offsets i and i + 1 of the data.
        property_offsets, properties: the same for the properties after the unique key; None: there are none.
        sizes: filled with each record's size.

    Returns:
        A bytearray; None if it would be 2 GiB or more or a record's properties are too long.
    """
    cdef Py_ssize_t i, count = numbers.shape[0]
    cdef Frame frame = frame_of(header, topic, key)
    cdef int64_t total = 0, size, begin, length, properties_begin = 0, properties_bytes = 0
    cdef bint with_properties = property_offsets is not None
    cdef uint8_t *to
    cdef const uint8_t *body_data = &bodies[0] if bodies.shape[0] else NULL
    cdef const uint8_t *property_data = NULL
    if body_offsets.shape[0] != count + 1 or sizes.shape[0] != count:
        raise ValueError("arrays of different lengths")
    check_offsets(body_offsets, bodies.shape[0])
    if with_properties:
        if property_offsets.shape[0] != count + 1:
            raise ValueError("arrays of different lengths")
        check_offsets(property_offsets, properties.shape[0])
        if properties.shape[0]:
            property_data = &properties[0]
    for i in range(count):
        if with_properties:
            properties_bytes = property_offsets[i + 1] - property_offsets[i]
        size = size_of(&frame, body_offsets[i + 1] - body_offsets[i], properties_bytes)
        total += size
        if not size or total > MAX_BYTES:
            return None
        sizes[i] = <int32_t>size
    records = PyByteArray_FromStringAndSize(NULL, total)
    to = <uint8_t *>PyByteArray_AS_STRING(records)
    with nogil:
        for i in range(count):
            if with_properties:
                properties_begin = property_offsets[i]
                properties_bytes = property_offsets[i + 1] - properties_begin
            begin = body_offsets[i]
            to = put(to, &frame, sizes[i], body_data + begin, body_offsets[i + 1] - begin, numbers[i],
                     property_data + properties_begin, properties_bytes)
    return records


cdef int check_offsets(const int32_t[::1] offsets, Py_ssize_t length) except -1:
    cdef Py_ssize_t i
    cdef int32_t before = 0
    for i in range(offsets.shape[0]):
        if offsets[i] < before:
            raise ValueError("offsets must be in ascending order")
        before = offsets[i]
    if before > length:
        raise ValueError("offsets outside of the data")
    return 0


def join_messages(bytes header not None, bytes topic not None, bytes key not None, list messages not None,
                  int32_t[::1] sizes not None):
    """Encode records of messages with numbers (`number_messages`), as `join_columns`.

    Return None also if an element is no `MessageFields`, or its key is a text.
    """
    cdef Py_ssize_t i, count = len(messages)
    cdef Frame frame = frame_of(header, topic, key)
    cdef int64_t total = 0, size
    cdef MessageFields message
    cdef uint8_t *to
    if sizes.shape[0] != count:
        raise ValueError("lists of different lengths")
    for i in range(count):
        each = messages[i]
        if not isinstance(each, MessageFields):
            return None
        message = <MessageFields>each
        if type(message._key) is not int or not PyBytes_CheckExact(message.body) or message.own_properties is None:
            return None
        size = size_of(&frame, PyBytes_GET_SIZE(message.body), PyBytes_GET_SIZE(message.own_properties))
        total += size
        if not size or total > MAX_BYTES:
            return None
        sizes[i] = <int32_t>size
    records = PyByteArray_FromStringAndSize(NULL, total)
    to = <uint8_t *>PyByteArray_AS_STRING(records)
    for i in range(count):
        message = <MessageFields>messages[i]
        to = put(to, &frame, sizes[i], <const uint8_t *>PyBytes_AS_STRING(message.body), PyBytes_GET_SIZE(message.body),
                 message._key, <const uint8_t *>PyBytes_AS_STRING(message.own_properties),
                 PyBytes_GET_SIZE(message.own_properties))
    return records


def join_one(bytes header not None, bytes topic not None, bytes key not None, int64_t number, bytes body not None,
             bytes properties not None, int64_t born_timestamp_ms):
    """Encode one record, as `join_messages`; None if its properties are too long or it would be 2 GiB or more.

    Args:
        header: the header, with any born timestamp.
    """
    cdef Frame frame = frame_of(header, topic, key)
    cdef int64_t size = size_of(&frame, PyBytes_GET_SIZE(body), PyBytes_GET_SIZE(properties))
    cdef uint8_t *to
    if not size or size > MAX_BYTES:
        return None
    record = PyByteArray_FromStringAndSize(NULL, size)
    to = <uint8_t *>PyByteArray_AS_STRING(record)
    put(to, &frame, size, <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), number,
        <const uint8_t *>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
    store_i64(to + AT_BORN_TIMESTAMP, born_timestamp_ms)
    return record
