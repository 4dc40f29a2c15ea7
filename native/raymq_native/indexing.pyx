"""Write keys to an index file: RocketMQ's hash table of slots and chained entries (`raymq.storage.log.index_file`)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t

from raymq_native.octets cimport load_i32, store_i32, store_i64

cdef enum:
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    AHEAD = 12  # so many slots are asked for before they are needed: each lies in a cache line of its own

cdef extern from *:
    """
    #define RAYMQ_PREFETCH(at) __builtin_prefetch((at), 1)
    /* Writes before it are done before writes after it: a process may crash in between. */
    #define RAYMQ_IN_ORDER() __asm__ volatile("" ::: "memory")
    """
    void RAYMQ_PREFETCH(const void *at) nogil
    void RAYMQ_IN_ORDER() nogil


def put_keys(uint8_t[::1] slots not None, uint8_t[::1] entries not None, int64_t number,
             const int32_t[::1] hashes not None, const int64_t[::1] physical_offsets not None,
             const int32_t[::1] seconds not None):
    """Write an entry for each key, and point its slot to the entry.

    Args:
        slots, entries: the two parts of the file; entry 0 is not used.
        number: the number of the first new entry; slots that point to it or beyond are stale.
        hashes: the keys' hashes, each at least 0.

    Returns:
        How many slots were empty.
    """
    cdef Py_ssize_t i, count = hashes.shape[0]
    cdef int64_t slot_count = slots.shape[0] // SLOT_BYTES
    cdef int64_t empty = 0, first = number
    if physical_offsets.shape[0] != count or seconds.shape[0] != count:
        raise ValueError("arrays of different lengths")
    if number < 1 or number + count > entries.shape[0] // ENTRY_BYTES or number + count > 0x7FFFFFFF or not slot_count:
        raise ValueError("entries outside of the file")
    for i in range(count):
        if hashes[i] < 0:
            raise ValueError("a hash must be at least 0")
    for i in range(count):
        if i + AHEAD < count:
            RAYMQ_PREFETCH(&slots[hashes[i + AHEAD] % slot_count * SLOT_BYTES])
        empty += enter(&slots[0], slot_count, &entries[0], number, first, hashes[i], physical_offsets[i], seconds[i])
        number += 1
    return empty


def put_few(file not None, int64_t slots_at, int64_t entries_at, int64_t size, int64_t number, list hashes not None,
            int64_t physical_offset, int32_t seconds):
    """Write the keys of one record to a whole file, as `put_keys`.

    Args:
        file: the slots begin at `slots_at`, the entries at `entries_at`; the entries end at `size`.

    Returns:
        How many slots were empty.
    """
    cdef Py_buffer held
    PyObject_GetBuffer(file, &held, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if not 0 <= slots_at < entries_at <= size <= held.len:
            raise ValueError("slots or entries outside of the file")
        return put_into(<uint8_t *>held.buf + slots_at, (entries_at - slots_at) // SLOT_BYTES,
                        <uint8_t *>held.buf + entries_at, (size - entries_at) // ENTRY_BYTES,
                        number, hashes, physical_offset, seconds)
    finally:
        PyBuffer_Release(&held)


cdef int64_t put_into(uint8_t *slots, int64_t slot_count, uint8_t *entries, int64_t capacity, int64_t number,
                      list hashes, int64_t physical_offset, int32_t seconds) except -1:
    cdef int64_t empty = 0, first = number
    cdef int32_t hashed
    if number < 1 or number + len(hashes) > capacity or number + len(hashes) > 0x7FFFFFFF or not slot_count:
        raise ValueError("entries outside of the file")
    for hashed in hashes:
        if hashed < 0:
            raise ValueError("a hash must be at least 0")
        empty += enter(slots, slot_count, entries, number, first, hashed, physical_offset, seconds)
        number += 1
    return empty


cdef inline bint enter(uint8_t *slots, int64_t slot_count, uint8_t *entries, int64_t number, int64_t first,
                       int32_t hashed, int64_t physical_offset, int32_t seconds) noexcept nogil:
    """Write entry `number` of a call that began with entry `first`; return whether its slot was empty."""
    cdef int64_t which = hashed % slot_count
    cdef uint8_t *slot = slots + which * SLOT_BYTES
    cdef uint8_t *entry = entries + number * ENTRY_BYTES
    cdef int32_t previous = load_i32(slot)
    # A slot that points to a new entry was set by this call or is stale; if stale, the entry belongs to another slot.
    cdef bint empty = not 0 < previous < number or (
        previous >= first and load_i32(entries + previous * ENTRY_BYTES) % slot_count != which)
    store_i32(entry, hashed)
    store_i64(entry + 4, physical_offset)
    store_i32(entry + 12, seconds)
    store_i32(entry + 16, 0 if empty else previous)
    RAYMQ_IN_ORDER()
    store_i32(slot, <int32_t>number)
    RAYMQ_IN_ORDER()
    return empty
