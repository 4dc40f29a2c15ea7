"""Positions and values of the fields of a record with IPv4 hosts, as in RocketMQ's MessageDecoder.

They equal those of raymq/storage/records/record.py; a test compares both files.
"""

cdef enum:
    AT_MAGIC = 4
    AT_BODY_CRC = 8
    AT_QUEUE_ID = 12
    AT_QUEUE_OFFSET = 20
    AT_PHYSICAL_OFFSET = 28
    AT_SYS_FLAG = 36
    AT_BORN_TIMESTAMP = 40
    AT_STORE_TIMESTAMP = 56
    AT_STORE_HOST = 64
    AT_BODY_LENGTH = 84
    AT_BODY = 88
    LEAST_TAIL = 3
    STORE_HOST_BYTES = 8
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    PREPARED = 0x04
    BORN_IPV6 = 0x10
    STORE_IPV6 = 0x20
    IPV6_SHIFT = 12
    CRC_MASK = 0x7FFFFFFF
    MAX_PROPERTIES = 32767
    SECTOR = 512
    NAME_END = 1
    PAIR_END = 2
