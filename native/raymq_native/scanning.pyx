"""Check received records, find their parts, derive tags codes and key hashes, and stamp copies of them.

These functions only report that a record is not sound or not of the usual kind. `raymq.storage.records`, which has the
same steps in NumPy, then finds the fault, and hashes keys that are not ASCII. Every position is checked against the
buffer's bounds before it is read.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from raymq_native.octets cimport crc32_of, crc32_prepare, load_i32, load_i64, load_u16, store_i64

crc32_prepare()

include "layout.pxi"

cdef enum:
    BLANK = 0x20
    HASH_SIGN = 0x23
    UNUSUAL_FLAGS = PREPARED | BORN_IPV6 | STORE_IPV6  # the first is a bit of a rolled back transaction's, too

cdef struct Parts:
    int64_t body_at
    int64_t body_length
    int64_t topic_at
    int64_t topic_length
    int64_t properties_at


cdef bint locate(const uint8_t *record, int64_t size, bint check_crc, Parts *parts) noexcept nogil:
    """Find the parts of a record of that size; return whether it is sound."""
    cdef int64_t shift = 0, body_at, length, room, topic_at, topic_length, properties_at
    cdef int32_t sys_flag
    if size < AT_BODY + LEAST_TAIL or load_i32(record) != size:
        return False
    cdef bint version_2 = load_i32(record + AT_MAGIC) == MAGIC_V2
    if not version_2 and load_i32(record + AT_MAGIC) != MAGIC_V1:
        return False
    sys_flag = load_i32(record + AT_SYS_FLAG)
    shift = (IPV6_SHIFT if sys_flag & BORN_IPV6 else 0) + (IPV6_SHIFT if sys_flag & STORE_IPV6 else 0)
    body_at = AT_BODY + shift
    room = size - body_at - LEAST_TAIL
    if room < 0 or load_i32(record + AT_QUEUE_ID) < 0:
        return False
    length = load_i32(record + AT_BODY_LENGTH + shift)
    if not 0 <= length <= room:
        return False
    topic_at = body_at + length
    if version_2:
        topic_length = load_u16(record + topic_at)
        topic_at += 2
    else:
        topic_length = record[topic_at]
        topic_at += 1
    properties_at = topic_at + topic_length + 2
    if topic_length == 0 or properties_at > size or properties_at + load_u16(record + properties_at - 2) != size:
        return False
    if properties_at < size and record[size - 1] == 0:
        return False
    if check_crc and crc32_of(record + body_at, length) & CRC_MASK != <uint32_t>load_i32(record + AT_BODY_CRC):
        return False
    parts.body_at = body_at
    parts.body_length = length
    parts.topic_at = topic_at
    parts.topic_length = topic_length
    parts.properties_at = properties_at
    return True


def scan(const uint8_t[::1] records not None, const int32_t[::1] sizes not None, bint check_crc,
         int64_t[:, ::1] places not None, int32_t[:, ::1] numbers not None):
    """Check contiguous records and find their parts.

    Args:
        sizes: the size of each record.
        places: filled with each record's begin and end, its body's begin and length, and its properties' begin.
        numbers: filled with each record's sys flag and queue id.

    Returns:
        (all bits of the sys flags, the topic, whether all have one queue id); None if a record is not sound, the sizes
        do not add up to the buffer or there are several topics.
    """
    cdef Py_ssize_t i, count = sizes.shape[0]
    cdef int64_t at = 0, size, total = records.shape[0]
    cdef int32_t any_flags = 0
    cdef bint one_queue = True, whole = False
    cdef Parts parts, first
    first.topic_at = first.topic_length = 0
    if count == 0 or total == 0:
        return None
    if places.shape[0] != 5 or places.shape[1] != count or numbers.shape[0] != 2 or numbers.shape[1] != count:
        raise ValueError("places must be 5 x n and numbers 2 x n")
    cdef const uint8_t *buffer = &records[0]
    with nogil:
        for i in range(count):
            size = sizes[i]
            if size > total - at or not locate(buffer + at, size, check_crc, &parts):
                break
            if i == 0:
                first = parts
            elif parts.topic_length != first.topic_length or memcmp(
                    buffer + at + parts.topic_at, buffer + first.topic_at, first.topic_length):
                break
            places[0, i] = at
            places[1, i] = at + size
            places[2, i] = at + parts.body_at
            places[3, i] = parts.body_length
            places[4, i] = at + parts.properties_at
            numbers[0, i] = load_i32(buffer + at + AT_SYS_FLAG)
            numbers[1, i] = load_i32(buffer + at + AT_QUEUE_ID)
            any_flags |= numbers[0, i]
            one_queue = one_queue and numbers[1, i] == numbers[1, 0]
            at += size
        else:
            whole = at == total
    if not whole:
        return None
    return any_flags, bytes(records[first.topic_at : first.topic_at + first.topic_length]), one_queue


def record_sizes(const uint8_t[::1] content not None, int64_t place, int32_t[::1] sizes not None):
    """Find the sizes of the whole, contiguous records of the log that begin at the first byte.

    Args:
        place: the offset of the bytes in the log; a record contains its own offset.
        sizes: filled with the sizes; the search ends when it is full.

    Returns:
        The number of records.
    """
    cdef Py_ssize_t count = 0, most = sizes.shape[0]
    cdef int64_t at = 0, size, total = content.shape[0]
    cdef int32_t magic
    if total == 0:
        return 0
    cdef const uint8_t *buffer = &content[0]
    with nogil:
        while count < most and total - at >= AT_BODY + LEAST_TAIL:
            size = load_i32(buffer + at)
            magic = load_i32(buffer + at + AT_MAGIC)
            if magic != MAGIC_V1 and magic != MAGIC_V2 or load_i64(buffer + at + AT_PHYSICAL_OFFSET) != place + at:
                break
            if size < AT_BODY + LEAST_TAIL or size > total - at:
                break
            sizes[count] = <int32_t>size
            count += 1
            at += size
    return count


cdef inline bint ascii_hash(const uint8_t *text, int64_t length, uint32_t *value) noexcept nogil:
    """Continue Java's hash with a text; return whether the text is ASCII."""
    cdef uint32_t hashed = value[0]
    cdef uint8_t seen = 0
    cdef int64_t i = 0
    while length - i >= 4:  # four at once: the next one need not wait for each product
        hashed = <uint32_t>(31 * 31 * 31 * 31) * hashed + (
            <uint32_t>(31 * 31 * 31) * text[i] + <uint32_t>(31 * 31) * text[i + 1] + <uint32_t>31 * text[i + 2] + text[i + 3])
        seen |= text[i] | text[i + 1] | text[i + 2] | text[i + 3]
        i += 4
    while i < length:
        hashed = 31 * hashed + text[i]
        seen |= text[i]
        i += 1
    value[0] = hashed
    return seen < 0x80


cdef struct Span:
    const uint8_t *begin
    int64_t length


cdef inline bint is_named(const uint8_t *at, int64_t length, const char *name, int64_t name_length) noexcept nogil:
    return length >= name_length and not memcmp(at, name, name_length)


cdef struct Found:
    # The values of the properties by which a record is found; a length of 0: there is none.
    Span tags
    Span keys
    Span first
    Span last


cdef Found find(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Search properties; the last unique key is set only if it is not the first one."""
    cdef Found found
    cdef const uint8_t *stop
    cdef int64_t length
    found.tags.length = found.keys.length = found.first.length = found.last.length = 0
    found.tags.begin = found.keys.begin = found.first.begin = found.last.begin = NULL
    while at < end:
        stop = <const uint8_t *>memchr(at, PAIR_END, end - at)
        if stop == NULL:
            stop = end
        length = stop - at
        if is_named(at, length, b"TAGS\x01", 5):
            found.tags.begin, found.tags.length = at + 5, length - 5
        elif is_named(at, length, b"KEYS\x01", 5):
            found.keys.begin, found.keys.length = at + 5, length - 5
        elif is_named(at, length, b"UNIQ_KEY\x01", 9):
            found.last.begin, found.last.length = at + 9, length - 9
            if found.first.begin == NULL:
                found.first = found.last
        at = stop + 1
    if found.first.begin == found.last.begin or (found.first.length == found.last.length
                                                 and not memcmp(found.first.begin, found.last.begin, found.first.length)):
        found.last.length = 0
    return found


def derive(const uint8_t[::1] records not None, const int64_t[::1] properties_at not None,
           const int64_t[::1] ends not None, uint32_t topic_hash, int64_t[::1] tags_codes not None,
           int32_t[::1] key_hashes not None, int64_t[::1] key_owners not None):
    """Derive what queue entries and the index need from the properties of sound records of one topic.

    Args:
        topic_hash: Java's hash of `topic#`.
        tags_codes: filled with Java's hash of TAGS; 0 without TAGS.
        key_hashes, key_owners: filled with the index hashes of all keys and the numbers of their records. The keys of
            a record are its first UNIQ_KEY, its last one if it differs, and every key of KEYS.

    Returns:
        The number of keys; -1 if a key or tag is not ASCII or the arrays are too short.
    """
    cdef Py_ssize_t i, count = ends.shape[0], most = key_hashes.shape[0], put = 0
    cdef const uint8_t *buffer = &records[0]
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef Found found
    cdef uint32_t hashed
    cdef int which
    if properties_at.shape[0] != count or tags_codes.shape[0] != count or key_owners.shape[0] != most:
        raise ValueError("arrays of different lengths")
    for i in range(count):
        if not 0 <= properties_at[i] <= ends[i] <= records.shape[0]:
            raise ValueError("properties outside of the records")
        found = find(buffer + properties_at[i], buffer + ends[i])
        hashed = 0
        if not ascii_hash(found.tags.begin, found.tags.length, &hashed):
            return -1
        tags_codes[i] = <int32_t>hashed
        for which in range(2):
            if which:
                found.first = found.last
            if found.first.length:
                hashed = topic_hash
                if put == most or not ascii_hash(found.first.begin, found.first.length, &hashed):
                    return -1
                key_hashes[put], key_owners[put] = index_hash(hashed), i
                put += 1
        at, end = found.keys.begin, found.keys.begin + found.keys.length
        while found.keys.length and at < end:
            stop = at
            while stop < end and stop[0] != BLANK:
                stop += 1
            if stop > at:
                hashed = topic_hash
                if put == most or not ascii_hash(at, stop - at, &hashed):
                    return -1
                key_hashes[put], key_owners[put] = index_hash(hashed), i
                put += 1
            at = stop + 1
    return put


cdef inline int add_key(list hashes, uint32_t topic_hash, const uint8_t *text, int64_t length) except -1:
    """Append the index hash of a key; return 0 if the key is not ASCII."""
    if not ascii_hash(text, length, &topic_hash):
        return 0
    hashes.append(index_hash(topic_hash))
    return 1


def scan_one(record not None, bint check_crc, int64_t most_body, int64_t most_record):
    """Check a single record, and derive what the queue and the index need from it.

    Args:
        most_body, most_record: the largest allowed sizes.

    Returns:
        (topic, queue id, tags code, index hashes of its keys); None if it is not sound, breaks a limit, or is not of the
        usual kind: version 1, IPv4, no prepared transaction, with properties in which no sector can be all zeros, its
        tag and keys ASCII.
    """
    cdef Py_buffer held
    PyObject_GetBuffer(record, &held, PyBUF_SIMPLE)
    try:
        return one_of(<const uint8_t *>held.buf, held.len, check_crc, most_body, most_record)
    finally:
        PyBuffer_Release(&held)


cdef object one_of(const uint8_t *record, int64_t size, bint check_crc, int64_t most_body, int64_t most_record):
    cdef Parts parts
    cdef Found found
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef uint32_t topic_hash = 0, tags_code = 0
    cdef list hashes
    if size > most_record or size < AT_BODY + LEAST_TAIL or load_i32(record + AT_SYS_FLAG) & UNUSUAL_FLAGS:
        return None
    if load_i32(record + AT_MAGIC) != MAGIC_V1 or not locate(record, size, check_crc, &parts):
        return None
    if not 0 < parts.body_length <= most_body or not 0 < size - parts.properties_at <= MAX_PROPERTIES:
        return None
    if size - parts.properties_at >= SECTOR and memchr(record + parts.properties_at, 0, size - parts.properties_at) != NULL:
        return None
    found = find(record + parts.properties_at, record + size)
    if not ascii_hash(record + parts.topic_at, parts.topic_length, &topic_hash):
        return None
    topic_hash = 31 * topic_hash + HASH_SIGN
    if not ascii_hash(found.tags.begin, found.tags.length, &tags_code):
        return None
    hashes = []
    if found.first.length and not add_key(hashes, topic_hash, found.first.begin, found.first.length):
        return None
    if found.last.length and not add_key(hashes, topic_hash, found.last.begin, found.last.length):
        return None
    at, end = found.keys.begin, found.keys.begin + found.keys.length
    while found.keys.length and at < end:
        stop = at
        while stop < end and stop[0] != BLANK:
            stop += 1
        if stop > at and not add_key(hashes, topic_hash, at, stop - at):
            return None
        at = stop + 1
    return (PyBytes_FromStringAndSize(<const char *>record + parts.topic_at, parts.topic_length),
            load_i32(record + AT_QUEUE_ID), <int32_t>tags_code, hashes)


cdef inline int32_t index_hash(uint32_t hashed) noexcept nogil:
    """Return the absolute value; 0 for the smallest int."""
    if hashed == <uint32_t>0x80000000:
        return 0
    return <int32_t>(hashed if hashed < <uint32_t>0x80000000 else 0 - hashed)


def stamp(uint8_t[::1] target not None, const uint8_t[::1] records not None, const int64_t[::1] starts not None,
          const int32_t[::1] sys_flags not None, const int64_t[::1] queue_offsets not None, int64_t physical_offset,
          int64_t store_timestamp_ms, int64_t store_host):
    """Copy sound, contiguous records with the store's fields; the caller writes the first four bytes last.

    Args:
        target: a buffer as long as `records`.
        starts: the begins of the records in a larger buffer, of which `records` is the part from `starts[0]` on.
        physical_offset: the offset of the first record.
        store_host: the 8 bytes of an IPv4 address and a port as one number.
    """
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t at, end, total = records.shape[0], origin
    cdef bint whole = False
    cdef uint8_t *to
    if count == 0 or target.shape[0] != total or sys_flags.shape[0] != count or queue_offsets.shape[0] != count:
        raise ValueError("arrays of different lengths")
    origin = starts[0]
    with nogil:
        for i in range(count):
            at = starts[i] - origin
            end = starts[i + 1] - origin if i + 1 < count else total
            if at < 0 or end > total or end - at < AT_BODY + LEAST_TAIL:
                break
            if i:
                memcpy(&target[at], &records[at], end - at)
            else:
                memcpy(&target[AT_MAGIC], &records[AT_MAGIC], end - AT_MAGIC)
            to = &target[at]
            store_i64(to + AT_QUEUE_OFFSET, queue_offsets[i])
            store_i64(to + AT_PHYSICAL_OFFSET, physical_offset + at)
            if sys_flags[i] & BORN_IPV6:
                to += IPV6_SHIFT
            store_i64(to + AT_STORE_TIMESTAMP, store_timestamp_ms)
            store_i64(to + AT_STORE_HOST, store_host)
        else:
            whole = True
    if not whole:
        raise ValueError("a record outside of the buffer")
