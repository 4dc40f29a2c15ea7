"""Encode and decode message ids: store host and physical offset in upper-case hexadecimal.

IPv4: 4 bytes address, 4 bytes port, 8 bytes offset = 32 digits; IPv6: 16 + 4 + 8 bytes = 56 digits.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache

from raymq.storage.errors import InvalidInput

_TAIL = struct.Struct(">iq")
_OFFSET_BYTES = 8
_LENGTHS = (2 * (4 + _TAIL.size), 2 * (16 + _TAIL.size))


def encode(host: str, port: int, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` in the store of `host`.

    Args:
        host: a numeric address.

    Raises:
        InvalidInput: `host` is not an address.
    """
    return (_packed(host) + _TAIL.pack(port, physical_offset)).hex().upper()


def prefix(host: str, port: int) -> str:
    """Return the common prefix of the ids of a store's records.

    The physical offset follows the prefix in 16 digits.
    """
    return encode(host, port, 0)[: -2 * _OFFSET_BYTES]


@lru_cache(maxsize=256)
def _packed(host: str) -> bytes:
    """Return a broker's address as bytes; the cache avoids parsing it for every message."""
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        raise InvalidInput("host", "a numeric IP address", host) from None


def decode(message_id: str) -> tuple[str, int, int]:
    """Return host, port and physical offset of an id in upper or lower case.

    Raises:
        InvalidInput: not 32 or 56 hexadecimal digits, or no port or offset in range.
    """
    try:
        data = bytes.fromhex(message_id)
    except (ValueError, TypeError):
        raise InvalidInput("message_id", "hexadecimal digits", message_id) from None
    if len(message_id) not in _LENGTHS or len(data) * 2 != len(message_id):
        raise InvalidInput("message_id", f"{_LENGTHS[0]} or {_LENGTHS[1]} hexadecimal digits", message_id)
    port, physical_offset = _TAIL.unpack(data[-_TAIL.size :])
    if not 0 <= port <= 0xFFFF or physical_offset < 0:
        raise InvalidInput("message_id", "a port up to 65535 and an offset from 0", message_id)
    return str(ipaddress.ip_address(data[: -_TAIL.size])), port, physical_offset
