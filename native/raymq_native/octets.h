/* Big-endian numbers at any byte position. */
#ifndef RAYMQ_OCTETS_H
#define RAYMQ_OCTETS_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define RAYMQ_SWAP32(x) (x)
#define RAYMQ_SWAP64(x) (x)
#else
#define RAYMQ_SWAP32(x) __builtin_bswap32(x)
#define RAYMQ_SWAP64(x) __builtin_bswap64(x)
#endif

static inline int32_t load_i32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return (int32_t)RAYMQ_SWAP32(value);
}

static inline int64_t load_i64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return (int64_t)RAYMQ_SWAP64(value);
}

static inline void store_i32(uint8_t *at, int32_t value)
{
    uint32_t swapped = RAYMQ_SWAP32((uint32_t)value);
    memcpy(at, &swapped, 4);
}

static inline void store_i64(uint8_t *at, int64_t value)
{
    uint64_t swapped = RAYMQ_SWAP64((uint64_t)value);
    memcpy(at, &swapped, 8);
}

static inline uint32_t load_u16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

#endif
