"""The parts of staged writes in a command's body, as a sequence of msgpack pieces.

Each piece has some hundred parts. A write of many tasks has many parts: they would not fit into a header, and reading
all of them at once would block the event loop. Each piece is [owner, [[part, rows], ...]]; the owner is a broker or a
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from raymq.actors.errors import InvalidInput
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.wire.frame import Buffer
from raymq.storage.cooperative_steps import Steps, run_steps

#: So many parts are in a piece, and one step reads one piece.
PARTS_PER_PIECE: Final = 500
#: The longest name of an owner or a part, in bytes.
_MAX_NAME: Final = 1_024
_MAX_ROWS: Final = 1 << 62

Parts = dict[str, dict[str, int]]


def parts_body(parts: Mapping[str, Mapping[str, int]]) -> bytes:
    """Return the parts of each owner, with their row counts, as a body.

    An owner without parts is left out.

    Raises:
        InvalidInput: there are more than `MAX_PARTS`.
    """
    check_count(sum(map(len, parts.values())))
    packer = msgpack.Packer()
    pieces: list[bytes] = []
    for owner, each in parts.items():
        rows = list(each.items())
        begins = range(0, len(rows), PARTS_PER_PIECE)
        pieces.extend(packer.pack([owner, rows[at : at + PARTS_PER_PIECE]]) for at in begins)
    return b"".join(pieces)


def check_count(parts: int) -> None:
    """Raise InvalidInput if there are more parts than a write may have."""
    if parts > MAX_PARTS:
        raise InvalidInput(
            "parts",
            f"at most {MAX_PARTS:,} of one write",
            parts,
            remedy="have fewer tasks write: DataFrame.coalesce before bridge.write",
        )


def read_parts_steps(body: Buffer) -> Steps[Parts]:
    """Read a body that `parts_body` made, in steps.

    Raises:
        InvalidInput: the body is invalid, or has more than `MAX_PARTS`.
    """
    parts: Parts = {}
    count = 0
    unpacker = msgpack.Unpacker(
        raw=False,
        max_buffer_size=max(len(body), 1),
        max_array_len=PARTS_PER_PIECE,
        max_str_len=_MAX_NAME,
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
            known.update((_name(part), _rows(row_count)) for part, row_count in rows)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise InvalidInput("body", "parts with their rows", str(error)[:200]) from None
        count += len(rows)
        check_count(count)
    return parts


def read_parts(body: Buffer) -> Parts:
    """Read a body like `read_parts_steps`, but at once."""
    return run_steps(read_parts_steps(body))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not a text")
    return value


def _rows(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_ROWS:
        raise ValueError("not a valid number of rows")
    return value
