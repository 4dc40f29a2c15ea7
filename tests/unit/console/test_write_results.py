"""Test that the pages of the last writes are kept, and no more."""

from __future__ import annotations

from raymq.console.page_rendering import Page
from raymq.console.write_results import WriteResults


def test_last_results_are_kept() -> None:
    results = WriteResults()
    pages = [Page("sent", f"Message {number}", {}) for number in range(150)]
    keys = [results.keep(page) for page in pages]
    assert [results.get(key) for key in keys] == [None] * 50 + pages[50:]
    assert len(set(keys)) == 150
    assert results.get("") is None
