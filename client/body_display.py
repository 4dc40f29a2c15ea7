"""Show message bodies to people.

JSON, msgpack and Arrow bodies decoded, others as text or bytes.

Bodies are data of others: nothing is unpickled or evaluated, and what is decoded is bounded. What cannot be decoded is
shown as it is.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgpack

from raymq.client.arrow_body import read_arrow_table

CONTENT_TYPE: Final = "content-type"
JSON_TYPE: Final = "application/json"
MSGPACK_TYPE: Final = "application/msgpack"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
#: A longer body is not decoded.
MAX_DECODED_BYTES: Final = 1 << 20
#: The rows of an Arrow body that are shown.
MAX_ROWS: Final = 100
#: A decoded value whose text would be longer is shown undecoded.
_MAX_CHARACTERS: Final = 4 << 20
#: The most lists and maps within each other; deeper values are shown undecoded.
_MAX_DEPTH: Final = 100
_ARROW_START: Final = b"\xff\xff\xff\xff"
#: The first bytes of msgpack's lists and maps. Nearly any bytes are msgpack, so nothing else is taken for it.
_MSGPACK_STARTS: Final = frozenset((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
#: Characters that do not occur in text for people.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f]")

#: A string, a bracket, a comma, a colon or another literal of valid JSON.
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')

Format = Literal["json", "msgpack", "arrow", "text", "bytes"]


@dataclass(frozen=True, slots=True)
class DisplayedBody:
    """A body in the form for people.

    Attributes:
        text: the body as text: JSON if it was decoded, base64 for "bytes".
        rows: the number of rows of an Arrow body, of which `text` has the first `MAX_ROWS`.
        note: why the body is not shown as its content type says, or what a reader of it has to know; else "".
    """

    format: Format
    text: str
    rows: int | None = None
    note: str = ""


def display_body(
    body: bytes,
    properties: Mapping[str, str] | None = None,
    *,
    indent: int | None = None,
    max_bytes: int = MAX_DECODED_BYTES,
) -> DisplayedBody:
    """Return a body in the form for people, decoded as its property `content-type` says.

    A body without that property is decoded if it begins as a JSON or msgpack list or map, or as an Arrow stream does.

    Args:
        indent: the indentation of JSON text; None: on one line.
        max_bytes: a longer body is not decoded.
    """
    named = ((properties or {}).get(CONTENT_TYPE) or "").partition(";")[0].strip().lower()
    expected = _BY_TYPE.get(named) if named else _recognized(body)
    note = ""
    if expected is not None and len(body) <= max_bytes:
        try:
            return _DECODERS[expected](body, indent)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the body is shown as it is
            note = f"the content type is {named}, but the body is not {NAMES[expected]} that can be shown"
    elif expected is not None:
        note = "too large to be decoded here"
    text = read_text(body)
    note = note if named else ""
    if text is None:
        return DisplayedBody("bytes", base64.b64encode(body).decode("ascii"), note=note)
    return DisplayedBody("text", text, note=note)


def read_text(body: bytes, *, is_cut: bool = False) -> str | None:
    """Return the text of bytes that are UTF-8 without control characters, else None.

    Args:
        is_cut: the last character may be incomplete.
    """
    for missing in range(4 if is_cut else 1):
        try:
            text = body[: len(body) - missing].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None


def _recognized(body: bytes) -> Format | None:
    """Return the format of a body without a content type by its first bytes."""
    if body.lstrip()[:1] in (b"{", b"["):
        return "json"
    if body.startswith(_ARROW_START):
        return "arrow"
    return "msgpack" if body and body[0] in _MSGPACK_STARTS else None


def _json(body: bytes, indent: int | None) -> DisplayedBody:
    """Show JSON with other blanks, and with its numbers as they are."""
    text, repeated = body.decode("utf-8"), set[str]()

    def values(pairs: list[tuple[str, Any]]) -> list[Any]:
        repeated.update(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return [value for _, value in pairs]

    _check_depth(json.loads(text, object_pairs_hook=values))
    note = ""
    if repeated:
        note = f"an object has a key twice, of which most readers see only the last: {json.dumps(min(repeated))[:100]}"
    return DisplayedBody("json", _bounded(_with_blanks(text, indent)), note=note)


def _with_blanks(text: str, indent: int | None) -> str:
    """Return valid JSON text with the blanks of `json.dumps`, and without needless escapes."""
    parts: list[str] = []
    depth, before = 0, ""
    for token in _JSON_TOKEN.findall(text):
        opened, closes = before in ("{", "["), token in ("}", "]")
        depth += opened - closes
        if indent is not None and (before == "," or opened != closes):
            parts.append("\n" + " " * (indent * depth))
        elif before in (",", ":"):
            parts.append(" ")
        parts.append(json.dumps(json.loads(token), ensure_ascii=False) if token[0] == '"' else token)
        before = token
    return "".join(parts)


def _msgpack(body: bytes, indent: int | None) -> DisplayedBody:
    # By default, no length within may exceed that of the body.
    value = msgpack.unpackb(body, strict_map_key=False, timestamp=3, object_pairs_hook=_map)
    return DisplayedBody("msgpack", _json_text(value, indent))


def _map(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return a map with text keys; raise ValueError if two of them are the same."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        text = key if isinstance(key, str) else str(key)
        if text in found:
            raise ValueError("a key occurs twice")
        found[text] = value
    return found


def _arrow(body: bytes, indent: int | None) -> DisplayedBody:
    table = read_arrow_table(body)
    if len(set(table.column_names)) < table.num_columns:
        raise ValueError("two columns have the same name")
    return DisplayedBody("arrow", _json_text(table.slice(0, MAX_ROWS).to_pylist(), indent), table.num_rows)


#: The formats as people write them.
NAMES: Final[Mapping[str, str]] = {"json": "JSON", "msgpack": "msgpack", "arrow": "Arrow"}
_BY_TYPE: Final[Mapping[str, Format]] = {JSON_TYPE: "json", MSGPACK_TYPE: "msgpack", ARROW_TYPE: "arrow"}
_DECODERS: Final[Mapping[str, Callable[[bytes, int | None], DisplayedBody]]] = {
    "json": _json,
    "msgpack": _msgpack,
    "arrow": _arrow,
}


def _json_text(value: Any, indent: int | None) -> str:
    """Return a value as JSON text.

    Raise ValueError if it is too deep or the text too long.
    """
    _check_depth(value)
    return _bounded(json.dumps(_plain(value), indent=indent, ensure_ascii=False, default=str))


def _bounded(text: str) -> str:
    """Return text that UTF-8 can express; raise ValueError if it is too long."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError("too long")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # JSON may have half a surrogate pair


def _check_depth(value: Any) -> None:
    if _depth(value) > _MAX_DEPTH:
        raise ValueError("too deep")


def _depth(value: Any) -> int:
    """Return how deep lists and maps are nested; it stops below the limit."""
    depth, level = 0, [value]
    while level and depth <= _MAX_DEPTH:
        depth += 1
        level = [
            item
            for each in level
            if isinstance(each, list | tuple | dict)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


def _plain(value: Any) -> Any:
    """Return a value with bytes as base64."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return f"base64:{base64.b64encode(value).decode('ascii')}"
    return value
