"""The parts of staged writes in a command's body: msgpack pieces of some hundred parts each, one behind the other.

A write of many tasks has many parts: a header would not take them, and to read all of them at once would hold up a
loop. Each piece is [owner, [[part, rows], ...]]; the owner is a broker or a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from raymq.actors.errors import InvalidInput
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.wire.frame import Buffer
from raymq.storage.steps import Steps, finish

#: So many parts are in a piece, and are read in a step.
PARTS_A_PIECE: Final = 500
#: Of an owner's name or a part's, in bytes.
_MOST_NAME: Final = 1_024
_MOST_ROWS: Final = 1 << 62

Parts = dict[str, dict[str, int]]


def parts_body(parts: Mapping[str, Mapping[str, int]]) -> bytes:
    """Parts by owner, each with its rows; an owner without any is left out.

    Raises:
        InvalidInput: more than `MAX_PARTS`.
    """
    check_count(sum(map(len, parts.values())))
    packer = msgpack.Packer()
    pieces: list[bytes] = []
    for owner, each in parts.items():
        rows = list(each.items())
        begins = range(0, len(rows), PARTS_A_PIECE)
        pieces.extend(packer.pack([owner, rows[at : at + PARTS_A_PIECE]]) for at in begins)
    return b"".join(pieces)


def check_count(parts: int) -> None:
    """InvalidInput for more parts than a write may have."""
    if parts > MAX_PARTS:
        raise InvalidInput(
            "parts",
            f"at most {MAX_PARTS:,} of one write",
            parts,
            remedy="have fewer tasks write: DataFrame.coalesce before bridge.write",
        )


def parts_in(body: Buffer) -> Steps[Parts]:
    """What `parts_body` was made of, in steps.

    Raises:
        InvalidInput: it is nothing of the kind, or more than `MAX_PARTS`.
    """
    parts: Parts = {}
    count = 0
    unpacker = msgpack.Unpacker(
        raw=False,
        max_buffer_size=max(len(body), 1),
        max_array_len=PARTS_A_PIECE,
        max_str_len=_MOST_NAME,
        max_bin_len=0,
        max_ext_len=0,
        max_map_len=0,
    )
    unpacker.feed(body)
    while unpacker.tell() < len(body):
        if parts:
            yield None
        try:
            owner, rows = unpacker.unpack()
            known = parts.setdefault(_name(owner), {})
            known.update((_name(part), _rows(told)) for part, told in rows)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise InvalidInput("body", "parts with their rows", str(error)[:200]) from None
        count += len(rows)
        check_count(count)
    return parts


def read_parts(body: Buffer) -> Parts:
    """`parts_in` at once."""
    return finish(parts_in(body))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is no text")
    return value


def _rows(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_ROWS:
        raise ValueError("a number of rows is none")
    return value
