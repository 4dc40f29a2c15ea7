/*
 * CRC-32 (IEEE 802.3, reflected, polynomial 0xEDB88320), as zlib computes it.
 *
 * Short texts and other processors: eight bytes a step by tables ("slicing by 8"). From 64 bytes on, where the processor
 * multiplies without carries: 64 bytes a step by folding, after Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction" (Intel, 2009); the constants are x**k modulo the polynomial, reflected. ARM's
 * processors of version 8 have an instruction for this very polynomial.
 */
#ifndef RAYMQ_CRC32_H
#define RAYMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define RAYMQ_CRC32_FOLDS 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define RAYMQ_CRC32_ARM 1
#include <arm_acle.h>
#endif

static uint32_t crc32_tables[8][256];
static int crc32_folds = 0;

/* Call this once before any other function. */
static void crc32_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc32_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t crc = crc32_tables[table - 1][byte];
            crc32_tables[table][byte] = crc >> 8 ^ crc32_tables[0][crc & 0xFF];
        }
#ifdef RAYMQ_CRC32_FOLDS
    __builtin_cpu_init();
    crc32_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

/* `crc` and the result are the inner state: the complement of what zlib returns. */
static uint32_t crc32_by_tables(uint32_t crc, const uint8_t *at, size_t length)
{
#ifdef RAYMQ_CRC32_ARM
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = __crc32d(crc, word);
    }
    for (; length; at++, length--)
        crc = __crc32b(crc, *at);
#else
    for (; length >= 8; at += 8, length -= 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = crc32_tables[7][low & 0xFF] ^ crc32_tables[6][low >> 8 & 0xFF] ^ crc32_tables[5][low >> 16 & 0xFF]
            ^ crc32_tables[4][low >> 24] ^ crc32_tables[3][at[4]] ^ crc32_tables[2][at[5]] ^ crc32_tables[1][at[6]]
            ^ crc32_tables[0][at[7]];
    }
    for (; length; at++, length--)
        crc = crc >> 8 ^ crc32_tables[0][(crc ^ *at) & 0xFF];
#endif
    return crc;
}

#ifdef RAYMQ_CRC32_FOLDS

#define RAYMQ_FOLDING __attribute__((target("pclmul,sse4.1")))

/* Shift `value` by the bits that `powers` encodes, and add the content there. */
RAYMQ_FOLDING static inline __m128i crc32_fold(__m128i value, __m128i powers, __m128i there)
{
    __m128i low = _mm_clmulepi64_si128(value, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

/* `length` is a multiple of 16, and at least 64. */
RAYMQ_FOLDING static uint32_t crc32_by_folding(uint32_t crc, const uint8_t *at, size_t length)
{
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_set_epi32(0, 0, 0, -1);
#define RAYMQ_AT(k) _mm_loadu_si128((const __m128i *)(at + 16 * (k)))
    __m128i a = _mm_xor_si128(RAYMQ_AT(0), _mm_cvtsi32_si128((int)crc));
    __m128i b = RAYMQ_AT(1), c = RAYMQ_AT(2), d = RAYMQ_AT(3);
    for (at += 64, length -= 64; length >= 64; at += 64, length -= 64) {
        a = crc32_fold(a, by_512, RAYMQ_AT(0));
        b = crc32_fold(b, by_512, RAYMQ_AT(1));
        c = crc32_fold(c, by_512, RAYMQ_AT(2));
        d = crc32_fold(d, by_512, RAYMQ_AT(3));
    }
    a = crc32_fold(a, by_128, b);
    a = crc32_fold(a, by_128, c);
    a = crc32_fold(a, by_128, d);
    for (; length; at += 16, length -= 16)
        a = crc32_fold(a, by_128, RAYMQ_AT(0));
#undef RAYMQ_AT
    /* 128 bits to 96, to 64, and by Barrett's reduction to 32. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
    b = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_64, 0x00), b);
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

#endif

/* What zlib.crc32 returns for these bytes. */
static inline uint32_t crc32_of(const uint8_t *at, size_t length)
{
    uint32_t crc = 0xFFFFFFFFu;
#ifdef RAYMQ_CRC32_FOLDS
    if (crc32_folds && length >= 64) {
        size_t whole = length & ~(size_t)15;
        crc = crc32_by_folding(crc, at, whole);
        at += whole;
        length -= whole;
    }
#endif
    return ~crc32_by_tables(crc, at, length);
}

#endif
