"""Test how message bodies are shown to people."""

from __future__ import annotations

import json
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
        (msgpack.packb({"a": b"\xff", 3: "x"}), MSGPACK_TYPE, "msgpack", {"a": "base64:/w==", "3": "x"}),
        (msgpack.packb({"a": 1}), None, "msgpack", {"a": 1}),
        (msgpack.packb({"a": 1}), "application/octet-stream", "bytes", None),
        (b"\xc1", MSGPACK_TYPE, "bytes", None),
        (arrow_body(2), f"{ARROW_TYPE}; x=y", "arrow", [{"n": 0}, {"n": 1}]),
        (arrow_body(1), None, "arrow", [{"n": 0}]),
        (arrow_body(2)[:-40], ARROW_TYPE, "bytes", None),
        (b"[" * 500 + b"]" * 500, None, "text", None),
        (b'"\\ud800"', JSON_TYPE, "json", "\ud800"),
        (b"a\x00b", None, "bytes", None),
        (b"[" * 100_000, None, "text", None),
        (pickle.dumps({"a": 1}), "application/python-pickle", "bytes", None),
    ],
)
def test_body_is_decoded_by_its_type(body: bytes, content_type: str | None, shape: str, value: Any) -> None:
    shown = display_body(body, {CONTENT_TYPE: content_type} if content_type else None)
    assert shown.format == shape
    if shape not in ("text", "bytes"):
        assert json.loads(shown.text) == value
        assert shown.note == ""


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "value", [{}, [], {"a": []}, [[], {}, [1, {"b": None}]], {"a": {"b": [True]}, "ä,:[": '"\\'}, 7]
)
def test_json_has_the_blanks_of_the_json_module(value: Any, indent: int | None) -> None:
    for body in (json.dumps(value), json.dumps(value, indent=5), json.dumps(value, separators=(",", ":"))):
        shown = display_body(body.encode(), {CONTENT_TYPE: JSON_TYPE}, indent=indent)
        assert shown.text == json.dumps(value, indent=indent, ensure_ascii=False)


@pytest.mark.parametrize("number", ["1e400", "1.10", "-0", "0.1234567890123456789", "1E5", "12345678901234567890123"])
def test_numbers_are_shown_as_they_are(number: str) -> None:
    shown = display_body(b'{"n": [%s]}' % number.encode())
    assert (shown.text, shown.note) == (f'{{"n": [{number}]}}', "")


def test_keys_that_occur_twice_are_all_shown_and_noted() -> None:
    shown = display_body(b'[{"a": 1, "b": 2, "a": 3}]')
    assert shown.text == '[{"a": 1, "b": 2, "a": 3}]'
    assert shown.note.endswith('only the last: "a"')
    assert display_body(b'[{"a": 1}, {"a": 2}]').note == ""


@pytest.mark.parametrize("pairs", [(b"\xa1a", b"\xa1a"), (b"\x01", b"\xa11")])
def test_map_of_msgpack_with_a_key_twice_is_not_decoded(pairs: tuple[bytes, bytes]) -> None:
    shown = display_body(b"\x82" + pairs[0] + b"\x01" + pairs[1] + b"\x02", {CONTENT_TYPE: MSGPACK_TYPE})
    assert shown.format == "bytes"
    assert "not msgpack that can be shown" in shown.note


@pytest.mark.parametrize("content_type", [JSON_TYPE, MSGPACK_TYPE, ARROW_TYPE])
def test_note_says_that_body_is_not_of_its_type(content_type: str) -> None:
    shown = display_body(b"plain", {CONTENT_TYPE: content_type})
    assert (shown.format, shown.text) == ("text", "plain")
    assert shown.note.startswith(f"the content type is {content_type}, but the body is not ")


def test_long_tables_and_bodies_are_cut() -> None:
    shown = display_body(arrow_body(1_000), {CONTENT_TYPE: ARROW_TYPE})
    assert (shown.rows, len(json.loads(shown.text))) == (1_000, 100)
    assert display_body(b'{"a": "' + b"x" * MAX_DECODED_BYTES + b'"}').format == "text"


def test_lists_that_claim_many_items_are_not_decoded() -> None:
    claims = b"\xdd\x00\x0f\xff\xff" * 500
    shown = display_body(claims + bytes(MAX_DECODED_BYTES - len(claims)), {CONTENT_TYPE: MSGPACK_TYPE})
    assert shown.format == "bytes"
    assert shown.note
