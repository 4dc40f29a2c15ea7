"""The codec of one record, a message in RocketMQ's commit log, big endian.

The layout is drawn in docs/internals/format.md. A record contains nothing about files; its reader or writer assigns its
position. Version 1 has one byte for the topic's length, version 2 (topics of more than 127 bytes) has two. Flag 16 of
the sys flag makes the born host an IPv6 address (16 bytes instead of 4), flag 32 the store host.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.records import crc, message_limits
from raymq.storage.records import message_id as message_ids
from raymq.storage.records import property_names as names

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124

SYS_FLAG_COMPRESSED: Final = 0x1
SYS_FLAG_TRANSACTION_PREPARED: Final = 0x4
SYS_FLAG_TRANSACTION_COMMIT: Final = 0x8
SYS_FLAG_TRANSACTION_ROLLBACK: Final = 0xC
SYS_FLAG_TRANSACTION_MASK: Final = 0xC
SYS_FLAG_BORN_IPV6: Final = 0x10
SYS_FLAG_STORE_IPV6: Final = 0x20

#: The header up to the body, one field a line; the hosts are IPv4.
_FIELDS: Final = (
    ("size", "i"),
    ("magic", "i"),
    ("body_crc", "i"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),
    ("born_address", "4s"),
    ("born_port", "i"),
    ("store_timestamp", "q"),
    ("store_address", "4s"),
    ("store_port", "i"),
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_length", "i"),
)


def _chosen(fields: Collection[str]) -> struct.Struct:
    """Return a struct of some fields of an IPv4 header; it skips the others."""
    codes = [code if name in fields else f"{struct.calcsize('>' + code)}x" for name, code in _FIELDS]
    return struct.Struct(">" + "".join(codes))


def header_dtype(fields: Collection[str] | None = None) -> np.dtype[np.void]:
    """Return NumPy's dtype of some or all fields of a header with IPv4 hosts.

    The fields "born_host" and "store_host" are 8 bytes each.
    """
    if fields is None:
        fields = [name.replace("_address", "_host") for name, _ in _FIELDS if not name.endswith("_port")]
    codes = {**dict(_FIELDS), "born_host": "q", "store_host": "q"}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [f">{codes[name]}" for name in fields],
            "offsets": [_offset(name.replace("_host", "_address")) for name in fields],
            "itemsize": HEADER.size,
        }
    )


def _header(born_address: str, store_address: str) -> struct.Struct:
    formats = {"born_address": born_address, "store_address": store_address}
    return struct.Struct(">" + "".join(formats.get(name, code) for name, code in _FIELDS))


def _offset(field: str) -> int:
    before = [name for name, _ in _FIELDS].index(field)
    return struct.calcsize(">" + "".join(code for _, code in _FIELDS[:before]))


#: The header by `sys_flag & (SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6)`.
HEADERS: Final = {
    0: _header("4s", "4s"),
    SYS_FLAG_BORN_IPV6: _header("16s", "4s"),
    SYS_FLAG_STORE_IPV6: _header("4s", "16s"),
    SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6: _header("16s", "16s"),
}
HEADER: Final = HEADERS[0]
#: How many bytes an IPv6 host shifts everything after it.
IPV6_SHIFT: Final = 12

OFFSET_SIZE: Final = _offset("size")
OFFSET_MAGIC: Final = _offset("magic")
OFFSET_BODY_CRC: Final = _offset("body_crc")
OFFSET_QUEUE_ID: Final = _offset("queue_id")
OFFSET_FLAG: Final = _offset("flag")
OFFSET_QUEUE_OFFSET: Final = _offset("queue_offset")
OFFSET_PHYSICAL_OFFSET: Final = _offset("physical_offset")
OFFSET_SYS_FLAG: Final = _offset("sys_flag")
OFFSET_BORN_TIMESTAMP: Final = _offset("born_timestamp")
OFFSET_BORN_HOST: Final = _offset("born_address")
#: The following offsets are those of a record with an IPv4 born host.
OFFSET_STORE_TIMESTAMP: Final = _offset("store_timestamp")


def store_timestamp_ms(record: Buffer) -> int:
    """Return when an encoded record was stored, in ms since 1970."""
    view = memoryview(record)
    flags = int.from_bytes(view[OFFSET_SYS_FLAG : OFFSET_SYS_FLAG + 4])
    at = OFFSET_STORE_TIMESTAMP + (IPV6_SHIFT if flags & SYS_FLAG_BORN_IPV6 else 0)
    return int.from_bytes(view[at : at + 8])


OFFSET_STORE_HOST: Final = _offset("store_address")
OFFSET_RECONSUME_TIMES: Final = _offset("reconsume_times")
OFFSET_PREPARED_TRANSACTION_OFFSET: Final = _offset("prepared_transaction_offset")
OFFSET_BODY_LENGTH: Final = _offset("body_length")
OFFSET_BODY: Final = HEADER.size

CRC_MASK: Final = 0x7FFFFFFF
MAX_PROPERTIES_BYTES: Final = message_limits.MAX_PROPERTIES_BYTES
#: The unit that every disk writes as a whole or not at all. Many disks write larger units, none smaller.
SECTOR_BYTES: Final = 512
MAX_TOPIC_BYTES: Final = 255
MAX_TOPIC_BYTES_V1: Final = 127
#: Header, topic length and properties length: an empty record of version 1.
MIN_RECORD_BYTES: Final = HEADER.size + 1 + 2

#: The end mark of a commit log file: the size of the rest of the file and MAGIC_BLANK.
BLANK: Final = struct.Struct(">ii")

#: The fields that the store stamps: two pairs of adjacent fields, and the first field of the second pair alone.
QUEUE_AND_PHYSICAL_OFFSET: Final = struct.Struct(">qq")
STORE_TIMESTAMP_AND_HOST: Final = struct.Struct(">q8s")
STORE_TIMESTAMP: Final = struct.Struct(">q")

#: The length field between topic and properties.
PROPERTIES_LENGTH: Final = struct.Struct(">H")
_INT = struct.Struct(">i")
_QUEUE_AND_FLAG = _chosen(("queue_id", "sys_flag"))
_LOCATING = _chosen(("size", "magic", "body_crc", "sys_flag", "body_length"))
#: Some fields of a header with IPv4 hosts: size, magic, body CRC, queue id, sys flag, body length.
CHECKED: Final = _chosen(("size", "magic", "body_crc", "queue_id", "sys_flag", "body_length"))
_EITHER_IPV6 = SYS_FLAG_BORN_IPV6 | SYS_FLAG_STORE_IPV6
#: The size of the topic's and the properties' length fields.
LEAST_TAIL: Final = MIN_RECORD_BYTES - OFFSET_BODY


@dataclass(slots=True)
class Record:
    """One decoded message.

    It owns its bytes and stays valid after the lease under which it was read. Times are in milliseconds.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    size: int
    version: int

    @property
    def message_id(self) -> str:
        """Return the message id: store host and physical offset in upper-case hexadecimal."""
        host, _, port = self.store_host.rpartition(":")
        return message_ids.encode(host.strip("[]"), int(port), self.physical_offset)

    @property
    def unique_key(self) -> str | None:
        """Return the id that the producer set, or None."""
        return self.properties.get(names.UNIQ_KEY)

    @property
    def tags(self) -> str | None:
        """Return the tag, or None without a tag."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """Return the keys of KEYS in their order, without empty ones."""
        return [key for key in self.properties.get(names.KEYS, "").split(names.KEY_SEPARATOR) if key]


def encode(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int,
    born_host: tuple[str, int] | bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode one record, ready for `Store.append`.

    The fields that only the store can set (offsets, store time and store host) are zero.

    Args:
        properties: as `encode_properties` makes them.
        born_host: address and port, or the packed form (4 or 16 bytes address, 4 bytes port).

    Raises:
        InvalidInput: topic or properties too long, a number out of its field's range, no numeric address.
    """
    name = topic.encode()
    if not 0 < len(name) <= MAX_TOPIC_BYTES:
        raise InvalidInput("topic", f"1 to {MAX_TOPIC_BYTES} bytes", topic)
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise InvalidInput("properties", f"at most {MAX_PROPERTIES_BYTES} bytes", len(properties))
    host = born_host if isinstance(born_host, bytes) else pack_host(*born_host)
    address = host[: -_INT.size]
    sys_flag &= ~_EITHER_IPV6
    if len(address) == 16:
        sys_flag |= SYS_FLAG_BORN_IPV6
    elif len(address) != 4:
        raise InvalidInput("born_host", "4 or 16 bytes address and 4 bytes port", host)
    header = HEADERS[sys_flag & SYS_FLAG_BORN_IPV6]
    version_2 = len(name) > MAX_TOPIC_BYTES_V1
    topic_length = len(name).to_bytes(2 if version_2 else 1, "big")
    size = header.size + len(body) + len(topic_length) + len(name) + PROPERTIES_LENGTH.size + len(properties)
    try:
        head = header.pack(
            size,
            MAGIC_V2 if version_2 else MAGIC_V1,
            crc.crc32(body) & CRC_MASK,
            queue_id,
            flag,
            0,
            0,
            sys_flag,
            born_timestamp_ms,
            address,
            _INT.unpack_from(host, len(address))[0],
            0,
            b"",
            0,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise InvalidInput("record", "each number within its field", str(error)) from None
    return b"".join((head, body, topic_length, name, PROPERTIES_LENGTH.pack(len(properties)), properties))


def pack_host(host: str, port: int) -> bytes:
    """Return the packed form of an address: 4 or 16 bytes and 4 bytes port.

    Raise InvalidInput if `host` is not numeric or `port` does not fit.
    """
    try:
        return ipaddress.ip_address(host).packed + _INT.pack(port)
    except (ValueError, struct.error):
        raise InvalidInput("host", "a numeric IP address and a port", f"{host}:{port}") from None


def pack_host_bytes(address: bytes, port: int) -> bytes:
    """Return the packed form of a host whose address is already in bytes."""
    return address + _INT.pack(port)


def measure(buffer: Buffer, position: int, end: int, *, check_crc: bool = True) -> int:
    """Return the size of the valid record at `position` of `buffer`.

    Args:
        end: only the bytes of `buffer` before this position are read.

    Raises:
        StoreCorrupt: there is no record, or it is incomplete, inconsistent, or its body has another CRC; offset =
            position.
    """
    return locate(buffer, position, end, check_crc)[-1] - position


def read_queue_id(buffer: Buffer, position: int) -> int:
    """Return the queue id of the valid record at `position`."""
    return int(_INT.unpack_from(buffer, position + OFFSET_QUEUE_ID)[0])


def queue_and_flag(record: Buffer) -> tuple[int, int]:
    """Return the queue id and sys flag of a valid record."""
    queue_id, sys_flag = _QUEUE_AND_FLAG.unpack_from(record)
    return queue_id, sys_flag


def decode(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> Record:
    """Decode the record at `position`; both versions and IPv6 hosts are supported.

    Raises:
        StoreCorrupt: as `measure`.
    """
    version, body_at, topic_at, properties_at, end = locate(buffer, position, len(buffer), check_crc)
    sys_flag = _INT.unpack_from(buffer, position + OFFSET_SYS_FLAG)[0]
    (
        size,
        _magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        _sys_flag,
        born_timestamp_ms,
        born_address,
        born_port,
        store_timestamp_ms,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = HEADERS[sys_flag & _EITHER_IPV6].unpack_from(buffer, position)
    return Record(
        topic=bytes(buffer[topic_at : properties_at - PROPERTIES_LENGTH.size]).decode("utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=bytes(buffer[body_at : body_at + body_length]),
        properties=decode_properties(buffer[properties_at:end]),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=_show_host(born_address, born_port),
        store_timestamp_ms=store_timestamp_ms,
        store_host=_show_host(store_address, store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=body_crc,
        size=size,
        version=version,
    )


def locate(buffer: Buffer, position: int, end: int, check_crc: bool) -> tuple[int, int, int, int, int]:
    """Return the version and the positions of body, topic, properties and the record's end.

    All of them are checked against each other.

    Raises:
        StoreCorrupt: as `measure`.
    """
    if not 0 <= position <= end - MIN_RECORD_BYTES:
        raise _unsound(position, "fewer bytes than a record has")
    size, magic, stored_crc, sys_flag, body_length = _LOCATING.unpack_from(buffer, position)
    if magic == MAGIC_V1:
        version = 1
    elif magic == MAGIC_V2:
        version = 2
    else:
        raise _unsound(position, f"no record's magic: {magic}")
    body_at = position + OFFSET_BODY
    record_end = position + size
    if sys_flag & _EITHER_IPV6:
        body_at = position + HEADERS[sys_flag & _EITHER_IPV6].size
    if record_end > end or record_end - body_at < LEAST_TAIL:
        raise _unsound(position, f"impossible size {size}")
    if sys_flag & _EITHER_IPV6:
        body_length = _INT.unpack_from(buffer, body_at - _INT.size)[0]
    topic_at = body_at + body_length + version
    if body_length < 0 or topic_at + 2 > record_end:
        raise _unsound(position, f"impossible body length {body_length}")
    properties_at = topic_at + buffer[topic_at - 1] + 2
    if version == 2:
        properties_at += buffer[topic_at - 2] << 8
    if properties_at > record_end:
        raise _unsound(position, "the topic is longer than the record")
    if properties_at + (buffer[properties_at - 2] << 8 | buffer[properties_at - 1]) != record_end:
        raise _unsound(position, "the parts' lengths do not add up to the size")
    if properties_at < record_end and not buffer[record_end - 1]:
        # Properties end with a separator. A torn write leaves zeros, and no CRC covers the properties.
        raise _unsound(position, "the properties are cut off")
    if check_crc and crc.crc32(memoryview(buffer)[body_at : body_at + body_length]) & CRC_MASK != stored_crc:
        raise _unsound(position, "the body's CRC is wrong")
    return version, body_at, topic_at, properties_at, record_end


def _unsound(position: int, reason: str) -> StoreCorrupt:
    return StoreCorrupt("record", position, reason)


def _show_host(address: bytes, port: int) -> str:
    """Format a host as Java does: "127.0.0.1:80", "[0:0:0:0:0:0:0:1]:80"."""
    if len(address) == 4:
        return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}:{port}"
    groups = struct.unpack(">8H", address)
    return f"[{':'.join([f'{group:x}' for group in groups])}]:{port}"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode each property as name, byte 1, value, byte 2, in UTF-8.

    Raises:
        InvalidInput: a name or value holds a separator or cannot be written in UTF-8.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise InvalidInput("properties", "no \\x01 or \\x02 in names and values", dict(properties))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("properties", "text that UTF-8 can express", dict(properties)) from None


def decode_properties(data: Buffer) -> dict[str, str]:
    """Decode the properties of a record into a mapping.

    The last value of a repeated name is used, except for UNIQ_KEY: a member of a batch has its own key first and the
    batch's key last, and the first is used. A pair with an empty name or value is dropped, as in RocketMQ's readers.
    """
    found: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and name and value and not (name == names.UNIQ_KEY and name in found):
            found[name] = value
    return found


def split(records: memoryview) -> npt.NDArray[np.int32]:
    """Return the sizes of contiguous records.

    Raises:
        InvalidInput: a size is impossible, or bytes are left over.
    """
    sizes: list[int] = []
    position, end = 0, len(records)
    while position < end:
        size = _INT.unpack_from(records, position)[0] if end - position >= MIN_RECORD_BYTES else -1
        if not MIN_RECORD_BYTES <= size <= end - position:
            raise InvalidInput("records", f"a whole record at byte {position} of {end}", size)
        sizes.append(size)
        position += size
    return np.array(sizes, np.int32)
