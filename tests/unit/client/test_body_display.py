"""Test how message bodies are shown to people."""

from __future__ import annotations

import pickle
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from raymq.client.body_display import ARROW_TYPE, CONTENT_TYPE, JSON_TYPE, MAX_DECODED_BYTES, MSGPACK_TYPE, display_body


def arrow_body(rows: int) -> bytes:
    table = pa.table({"n": list(range(rows))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("body", "content_type", "shape", "value"),
    [
        (b'{"a": [1, null]}', None, "json", {"a": [1, None]}),
        (b" [1]", None, "json", [1]),
        (b"7", JSON_TYPE, "json", 7),
        (b"null", JSON_TYPE, "json", None),
        (b"7", None, "text", None),
        (b"{broken", JSON_TYPE, "text", None),
        (b"\xff\xfe", None, "bytes", None),
        ("größe".encode(), None, "text", None),
        (msgpack.packb({"a": b"\xff", 3: "x"}), MSGPACK_TYPE, "msgpack", {"a": "/w==", "3": "x"}),
        (b"\xc1", MSGPACK_TYPE, "bytes", None),
        (arrow_body(2), f"{ARROW_TYPE}; x=y", "arrow", [{"n": 0}, {"n": 1}]),
        (arrow_body(2)[:-40], ARROW_TYPE, "bytes", None),
        (b"[" * 100_000, None, "text", None),
        (pickle.dumps({"a": 1}), "application/python-pickle", "bytes", None),
    ],
)
def test_body_is_decoded_by_its_type(body: bytes, content_type: str | None, shape: str, value: Any) -> None:
    shown = display_body(body, {CONTENT_TYPE: content_type} if content_type else None)
    assert (shown.format, shown.value) == (shape, value)


def test_long_tables_and_bodies_are_cut() -> None:
    shown = display_body(arrow_body(1_000), {CONTENT_TYPE: ARROW_TYPE})
    assert (shown.rows, len(shown.value)) == (1_000, 100)
    assert display_body(b'{"a": "' + b"x" * MAX_DECODED_BYTES + b'"}').format == "text"
