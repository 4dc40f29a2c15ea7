"""Show message bodies to people: JSON, msgpack and Arrow bodies decoded, others as text or bytes.

Bodies are data of others: nothing is unpickled or evaluated, and what is decoded is bounded. What cannot be decoded is
shown as it is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import pyarrow as pa

CONTENT_TYPE: Final = "content-type"
JSON_TYPE: Final = "application/json"
MSGPACK_TYPE: Final = "application/msgpack"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
#: A longer body is not decoded.
MAX_DECODED_BYTES: Final = 1 << 20
#: The rows of an Arrow body that are shown.
_MAX_ROWS: Final = 100
#: A decoded value whose text would be longer is shown undecoded.
_MAX_CHARACTERS: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class DisplayedBody:
    """A body in the form for people.

    Attributes:
        format: "json", "msgpack", "arrow", "text" or "bytes".
        text: the body as text; base64 for "bytes".
        value: the decoded value of JSON types; None for text and bytes.
        rows: the number of rows of an Arrow body, of which `value` has the first 100.
    """

    format: str
    text: str
    value: Any = None
    rows: int | None = None


def display_body(body: bytes, properties: Mapping[str, str] | None = None) -> DisplayedBody:
    """Return a body in the form for people, decoded as its property `content-type` says.

    A body without that property is decoded if it is a JSON object or list.
    """
    content_type = ((properties or {}).get(CONTENT_TYPE) or "").partition(";")[0].strip().lower()
    found = None
    if len(body) <= MAX_DECODED_BYTES:
        try:
            if content_type == MSGPACK_TYPE:
                found = _decoded("msgpack", msgpack.unpackb(body, raw=False, strict_map_key=False, timestamp=3))
            elif content_type == ARROW_TYPE:
                found = _arrow(body)
            elif content_type == JSON_TYPE or body.lstrip()[:1] in (b"{", b"["):
                found = _decoded("json", json.loads(body))
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the body is shown as it is
            found = None
    return _undecoded(body) if found is None else found


def _decoded(kind: str, value: Any, rows: int | None = None) -> DisplayedBody | None:
    """Return a decoded value with its JSON text; None if the text would be too long."""
    plain = json.loads(text) if len(text := _text(value)) <= _MAX_CHARACTERS else None
    return None if plain is None and value is not None else DisplayedBody(kind, text, plain, rows)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_as_json)


def _as_json(value: object) -> str:
    """Return a value that JSON has no type for, such as bytes or a time, as text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    return str(value)


def _arrow(body: bytes) -> DisplayedBody | None:
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    table.validate(full=True)  # the bytes may be anyone's
    return _decoded("arrow", table.slice(0, _MAX_ROWS).to_pylist(), table.num_rows)


def _undecoded(body: bytes) -> DisplayedBody:
    try:
        return DisplayedBody("text", body.decode("utf-8"))
    except UnicodeDecodeError:
        return DisplayedBody("bytes", base64.b64encode(body).decode("ascii"))
