"""Big-endian numbers at any byte position, and the CRC-32; see the headers."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef extern from "octets.h" nogil:
    int32_t load_i32(const uint8_t *at)
    int64_t load_i64(const uint8_t *at)
    void store_i32(uint8_t *at, int32_t value)
    void store_i64(uint8_t *at, int64_t value)
    uint32_t load_u16(const uint8_t *at)


cdef extern from "crc32.h" nogil:
    void crc32_prepare()
    uint32_t crc32_of(const uint8_t *at, size_t length)
