"""Decode a message's body into text for people; the body is data from a stranger.

JSON, msgpack and an Arrow stream of one row are shown as indented JSON, other text as it is, everything else as hex.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import pyarrow as pa

from raymq.spark_bridge.arrow_body import decode_arrow_row

#: The most bytes of a body, and of its decoded form, that are shown.
SHOWN_BYTES: Final = 64 << 10
_SHOWN_HEX_BYTES: Final = 4 << 10
_CONTENT_TYPE: Final = "content-type"
_ARROW_START: Final = b"\xff\xff\xff\xff"
#: Deeper values are not indented: they are shown as text or hex.
_DEEPEST: Final = 100
_PREVIEW_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body as text.

    Attributes:
        kind: "JSON", "msgpack", "Arrow", "text", "hex" or "empty".
        size: the bytes of the whole body.
        cut: whether `text` has only the beginning.
        note: why it is not shown as its content type says; "" if it is.
    """

    kind: str
    text: str
    size: int
    cut: bool
    note: str = ""


def view_body(body: bytes, properties: Mapping[str, str] | None = None) -> BodyView:
    """Return a body as text, by its content type and else by its bytes."""
    size = len(body)
    if not body:
        return BodyView("empty", "", 0, cut=False)
    named = (properties or {}).get(_CONTENT_TYPE, "").partition(";")[0].strip().lower()
    note = ""
    if size <= SHOWN_BYTES:
        for kind, decode in _decoders(named, body):
            try:
                text = _indented(decode(body))
            except (ValueError, RecursionError, OverflowError, TypeError, pa.ArrowException, msgpack.UnpackException):
                note = f"the content type is {named}, but the body is not {kind}" if named in _BY_TYPE else ""
            else:
                return BodyView(kind, text[:SHOWN_BYTES], size, cut=len(text) > SHOWN_BYTES)
    elif named in _BY_TYPE:
        note = "too large to be decoded here"
    text, is_text = _as_text(body[:SHOWN_BYTES], cut=size > SHOWN_BYTES)
    if is_text:
        return BodyView("text", text, size, cut=size > SHOWN_BYTES, note=note)
    return BodyView("hex", _hex_dump(body[:_SHOWN_HEX_BYTES]), size, cut=size > _SHOWN_HEX_BYTES, note=note)


def preview_body(body: bytes) -> str:
    """Return the beginning of a body on one line, as text or as hex."""
    text, is_text = _as_text(body[: 4 * _PREVIEW_CHARACTERS], cut=len(body) > 4 * _PREVIEW_CHARACTERS)
    line = " ".join(text.split()) if is_text else body[: _PREVIEW_CHARACTERS // 3].hex(" ")
    is_whole = len(line) <= _PREVIEW_CHARACTERS and (is_text or len(body) <= _PREVIEW_CHARACTERS // 3)
    return line if is_whole and len(body) <= 4 * _PREVIEW_CHARACTERS else line[:_PREVIEW_CHARACTERS] + "…"


def _json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"))


def _msgpack(body: bytes) -> Any:
    limit = len(body)
    return msgpack.unpackb(
        body, strict_map_key=False, max_str_len=limit, max_bin_len=limit, max_array_len=limit, max_map_len=limit
    )


_BY_TYPE: Final[dict[str, tuple[str, Callable[[bytes], Any]]]] = {
    "application/json": ("JSON", _json),
    "application/msgpack": ("msgpack", _msgpack),
    "application/vnd.apache.arrow.stream": ("Arrow", decode_arrow_row),
}


def _decoders(named: str, body: bytes) -> list[tuple[str, Callable[[bytes], Any]]]:
    """Return the decoders to try.

    Without a content type they are chosen by the first byte: nearly any bytes are msgpack, so only maps and lists are
    taken for it.
    """
    if named in _BY_TYPE:
        return [_BY_TYPE[named]]
    if named:
        return []
    if body[:1] in b"{[" or body.lstrip()[:1] in (b"{", b"["):
        return [("JSON", _json)]
    if body.startswith(_ARROW_START):
        return [("Arrow", decode_arrow_row)]
    first = body[0]
    if first in (0xDC, 0xDD, 0xDE, 0xDF) or 0x80 <= first <= 0x9F:
        return [("msgpack", _msgpack)]
    return []


def _indented(value: Any) -> str:
    if _depth(value) > _DEEPEST:
        raise ValueError("too deep")
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, default=str)


def _depth(value: Any) -> int:
    """Return how deep lists and maps are nested; it stops below the limit."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            item
            for each in level
            if isinstance(each, list | dict)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


def _plain(value: Any) -> Any:
    """Return a value with text keys, and with bytes as base64."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return f"base64:{base64.b64encode(value).decode('ascii')}"
    return value


def _as_text(body: bytes, *, cut: bool) -> tuple[str, bool]:
    """Return the text of bytes that are UTF-8 without control characters, and whether they are.

    Args:
        cut: the last character may be incomplete.
    """
    for missing in range(4 if cut else 1):
        try:
            text = body[: len(body) - missing].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return text, not any(ord(character) < 32 and character not in "\t\n\r\f" for character in text)
    return "", False


def _hex_dump(body: bytes) -> str:
    """Return lines of the position, sixteen bytes in hex and their ASCII characters."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        ascii_part = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {ascii_part}")
    return "\n".join(lines)
