"""Test small decisions of the console: paging, form fields, local paths, live tails, formats, vendored files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from raymq.client import InvalidInput, MessageQueue, QueueNotFound
from raymq.client.results import QueueStats
from raymq.console import page_rendering as rendering
from raymq.console.form_fields import Fields, json_fields
from raymq.console.message_listing import queue_of
from raymq.console.paging import ITEMS_PER_PAGE, page_of
from raymq.console.sign_in_pages import local_path
from raymq.console.tail_window import TailWindow


@pytest.mark.parametrize(
    ("page", "first", "number"), [(None, 0, 1), ("", 0, 1), ("2", 100, 2), ("3", 200, 3), ("99", 200, 3)]
)
def test_page_of_a_list(page: str | None, first: int, number: int) -> None:
    found = page_of(range(250), page)
    assert (found.items[0], found.page, found.pages, found.total) == (first, number, 3, 250)
    assert len(found.items) <= ITEMS_PER_PAGE


def test_empty_list_has_one_page() -> None:
    assert page_of([], None).as_data() == {"page": 1, "pages": 1, "total": 0}


@pytest.mark.parametrize("page", ["0", "-1", "x", "1.5", "²"])
def test_bad_page_number_is_refused(page: str) -> None:
    with pytest.raises(InvalidInput, match="page"):
        page_of([1], page)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/topics?filter=a", "/topics?filter=a"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("/\t/evil.example", "/"),
    ],
)
def test_sign_in_leads_only_to_this_console(text: str, expected: str) -> None:
    assert local_path(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("1", True), ("on", True), ("0", False), ("", False), (None, False), (1, False)],
)
def test_flags_of_forms(value: Any, expected: bool) -> None:
    assert Fields({"dry_run": value}).flag("dry_run") is expected


def test_fields_have_checked_types() -> None:
    fields = Fields({"ids": ["a", "b"], "one": "a", "rate": 2.5, "bad": {"a": 1}, "words": "many"})
    assert (fields.texts("ids"), fields.texts("one"), fields.texts("none")) == (["a", "b"], ["a"], [])
    assert (fields.rate("rate"), fields.rate("none")) == (2.5, None)
    for read, name in ((fields.texts, "bad"), (fields.text, "bad"), (fields.text, "ids"), (fields.rate, "words")):
        with pytest.raises(InvalidInput):
            read(name)


@pytest.mark.parametrize("rate", ["nan", "inf", "-inf", "0", "-1", "1e400", "1e10", "many", 0, -1.5, True])
def test_bad_rate_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Fields({"rate": rate}).rate("rate")


@pytest.mark.parametrize(
    "body",
    [
        b"no",
        b"[]",
        b"[" * 100_000,
        b'{"token": "\\ud800"}',
        b'{"token": "\xed\xa0\x80"}',
        b'{"rate": NaN}',
        b'{"rate": 1e999}',
        b'{"rate": ' + b"1" * 5_000 + b"}",
    ],
)
def test_bad_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="JSON object"):
        json_fields(body)


def test_json_fields_are_those_of_the_object() -> None:
    assert json_fields('{"a": "ä", "b": 1.5}'.encode()) == {"a": "ä", "b": 1.5}
    assert json_fields(b"") == {}


QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.mark.parametrize("text", ["broker-a:1", "broker-a:" + "1" * 5_000, "broker-a", ":", "broker-a:x", ""])
def test_unknown_queue_is_refused(text: str) -> None:
    stats = {QUEUE: QueueStats(0, 0, 0.0)}
    assert queue_of(stats, "t", "broker-a:0") == QUEUE
    with pytest.raises(QueueNotFound):
        queue_of(stats, "t", text)


def test_tail_counts_what_it_drops() -> None:
    window = TailWindow(held=3)
    for offset in range(5):
        window.put(QUEUE, offset, {"offset": offset})
    batch = window.take()
    assert [row["offset"] for row in batch.messages] == [2, 3, 4]
    assert (batch.too_fast, batch.missing) == (2, 0)
    assert window.take() == type(batch)([], 0, 0)


def test_tail_counts_offsets_that_never_came() -> None:
    window = TailWindow()
    for offset in (7, 8, 11):
        window.put(QUEUE, offset, {})
    window.put(MessageQueue("t", "broker-a", 1), 500, {})
    assert window.take().missing == 2
    window.put(QUEUE, 13, {})
    assert window.take().missing == 1


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (rendering.show_number(None), "unknown"),
        (rendering.show_number(0), "0"),
        (rendering.show_number(1234567), "1,234,567"),
        (rendering.show_rate(None), "unknown"),
        (rendering.show_rate(0.0), "0/s"),
        (rendering.show_rate(1.2345), "1.23/s"),
        (rendering.show_rate(12345.6), "12,346/s"),
        (rendering.show_age(None), "unknown"),
        (rendering.show_age(0.0), "0 s"),
        (rendering.show_age(0.193), "0.2 s"),
        (rendering.show_age(7_800.0), "2 h 10 min"),
        (rendering.show_size(None), "unknown"),
        (rendering.show_size(0), "0 B"),
        (rendering.show_size(65_536), "64 KiB"),
        (rendering.show_percent(None), "unknown"),
        (rendering.show_percent(0.064), "6%"),
        (rendering.show_when(None), "unknown"),
        (rendering.show_when(0.0), "never"),
        (rendering.show_when(1e300), "1e+300"),
        (rendering.show_when(1_795_995_793.393), "2026-11-29 23:43:13 UTC"),
        (rendering.or_unknown(None), "unknown"),
        (rendering.or_unknown(0), "0"),
    ],
)
def test_values_are_shown_with_units(shown: object, expected: str) -> None:
    assert re.sub("<[^>]*>", "", str(escape(shown))) == expected


def test_vendored_htmx_is_the_noted_one(repository: Path) -> None:
    folder = repository / "console" / "static"
    notice = (folder / "NOTICE.txt").read_text("utf-8")
    assert notice.startswith(rendering.HTMX)
    assert hashlib.sha256((folder / rendering.HTMX).read_bytes()).hexdigest() in notice


#: Scripts and styles within a page, code in attributes, and texts that are not escaped.
INLINE = re.compile(
    r"""<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|hx-on|hx-vals="js|javascript:|\|\s*safe|Markup"""
)
FOREIGN = re.compile(r"""(?:src|href|action)=["'](?:https?:)?//""")


def test_templates_have_no_inline_scripts_or_styles(repository: Path) -> None:
    found = sorted((repository / "console" / "templates").glob("*.html"))
    assert len(found) > 15
    for path in found:
        text = path.read_text("utf-8")
        assert (INLINE.findall(text), FOREIGN.findall(text)) == ([], []), path
