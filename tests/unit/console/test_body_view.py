"""Test how bodies are shown: decoded where they can be, cut where they are large, never evaluated."""

from __future__ import annotations

import json
import pickle

import msgpack
import pyarrow as pa
import pytest

from raymq.console.body_view import SHOWN_BYTES, preview_body, view_body

ARROW = "application/vnd.apache.arrow.stream"


def arrow_body(rows: int = 1, compression: str | None = None) -> bytes:
    table = pa.table({"order": list(range(rows)), "name": ["ä"] * rows})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("body", "content_type", "kind", "contains"),
    [
        (b"", None, "empty", ""),
        (b'{"a": [1, 2]}', None, "JSON", '"a": [\n'),
        (b'  [1, "<b>"]', None, "JSON", "<b>"),
        (b'"text"', "application/json", "JSON", '"text"'),
        (b'{"a": 1}', "application/json; charset=utf-8", "JSON", '"a": 1'),
        ("{ no json ä".encode(), None, "text", "{ no json ä"),
        (b"GET / 200\n", None, "text", "GET / 200"),
        (msgpack.packb({"a": b"\x00", 3: [1]}), None, "msgpack", '"a": "base64:AA=="'),
        (msgpack.packb("x"), "application/msgpack", "msgpack", '"x"'),
        (arrow_body(), None, "Arrow", '"name": "ä"'),
        (arrow_body(rows=2), ARROW, "Arrow", '"order": 1'),
        (arrow_body(compression="zstd"), ARROW, "Arrow", '"order": 0'),
        (b"\x89PNG\r\n\x1a\n", None, "hex", "89 50 4e 47"),
        (b"a\x00b", None, "hex", "a.b"),
        (pickle.dumps({"a": 1}), None, "hex", "80 04 95"),
        (b"<script>", "text/html", "text", "<script>"),
    ],
)
def test_body_is_shown_as(body: bytes, content_type: str | None, kind: str, contains: str) -> None:
    view = view_body(body, None if content_type is None else {"content-type": content_type})
    assert view.kind == kind
    assert contains in view.text
    assert (view.size, view.cut, view.note) == (len(body), False, "")


@pytest.mark.parametrize(
    ("body", "content_type", "note"),
    [
        (b"plain", "application/json", "not JSON"),
        (b"plain", "application/msgpack", "not msgpack"),
        (b"plain", ARROW, "not Arrow"),
        (arrow_body(rows=2)[:-40], ARROW, "not Arrow"),
        (b'{"n": NaN' + b"1" * 9 + b"}", "application/json", "not JSON"),
        (b"[" * 20_000, "application/json", "not JSON"),
        (b"[" * 500 + b"]" * 500, "application/json", "not JSON"),
        (b"1" * 10_000, "application/json", "not JSON"),
    ],
)
def test_body_that_is_not_what_it_says_is_shown_as_it_is(body: bytes, content_type: str, note: str) -> None:
    view = view_body(body, {"content-type": content_type})
    assert view.kind in ("text", "hex")
    assert note in view.note


def test_large_text_is_cut_and_says_so() -> None:
    view = view_body(b"x" * (SHOWN_BYTES + 1))
    assert (view.kind, len(view.text), view.size, view.cut) == ("text", SHOWN_BYTES, SHOWN_BYTES + 1, True)


def test_large_json_is_not_decoded_and_says_so() -> None:
    body = json.dumps(["x" * 100] * 1_000).encode()
    view = view_body(body, {"content-type": "application/json"})
    assert (view.kind, view.cut, view.note) == ("text", True, "too large to be decoded here")


def test_decoded_form_that_is_larger_than_its_body_is_cut() -> None:
    view = view_body(b"[" + b"1," * 30_000 + b"1]")
    assert view.kind == "JSON"
    assert len(view.text) == SHOWN_BYTES
    assert view.cut


def test_cut_within_a_character_is_still_text() -> None:
    view = view_body("ä".encode() * SHOWN_BYTES)
    assert view.kind == "text"
    assert set(view.text) == {"ä"}
    odd = view_body(b"a" + "ä".encode() * SHOWN_BYTES)
    assert odd.kind == "text"


def test_hex_is_cut_too() -> None:
    view = view_body(b"\x00" * 10_000)
    assert (view.kind, view.cut) == ("hex", True)
    assert view.text.splitlines()[1].startswith("00000010  00 00")


@pytest.mark.parametrize(
    ("body", "preview"),
    [
        (b"", ""),
        (b"one\n two", "one two"),
        (b"x" * 80, "x" * 80),
        (b"x" * 81, "x" * 80 + "…"),
        (b"\xff\x00", "ff 00"),
        (b"\xff" * 40, ("ff " * 26).strip() + "…"),
        ("ä".encode() * 500, "ä" * 80 + "…"),
    ],
)
def test_preview_is_one_line(body: bytes, preview: str) -> None:
    assert preview_body(body) == preview
