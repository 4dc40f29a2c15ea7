"""Test that the pages and tests named in docs/internals/tests-of-promises.md exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

INTERNALS = Path(__file__).resolve().parents[2] / "docs" / "internals"
#: The least number of promises with tests for each page; other pages may have none.
PROMISES = {
    "producing": 70,
    "consuming": 90,
    "retry": 25,
    "delay": 25,
    "spark": 50,
    "operations": 10,
    "replication": 40,
    "backup": 10,
    "format": 12,
    "state": 10,
}


class Row(NamedTuple):
    """A promise, the page that makes it, and its tests."""

    promise: str
    page: str
    tests: list[str]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    text = (INTERNALS / "tests-of-promises.md").read_text("utf-8")
    heads = ("| Promise | Page | Tests |", "|---|---|---|")
    lines = [cells(line) for line in text.splitlines() if line.startswith("|") and line not in heads]
    assert {len(line) for line in lines} == {3}
    found = []
    for promise, page, tests in lines:
        (link,) = re.findall(r"\]\(([^)]+)\)", page)
        found.append(Row(promise, link, re.findall(r"`([^`]+)`", tests)))
    return found


def test_each_promise_has_a_page_and_tests(rows: list[Row]) -> None:
    assert [row for row in rows if not (row.promise and row.tests)] == []
    assert {row.page for row in rows if not (INTERNALS / row.page).is_file()} == set()
    assert len({(row.promise, row.page) for row in rows}) == len(rows)


def test_each_named_test_exists(repository: Path, rows: list[Row]) -> None:
    named = {test for row in rows for test in row.tests}
    missing = set()
    defined: dict[str, set[str]] = {}
    for test in named:
        file, _, name = test.partition("::")
        path = repository / "tests" / file
        if file not in defined:
            source = path.read_text("utf-8") if path.is_file() else ""
            defined[file] = set(re.findall(r"^ *(?:(?:async )?def|class) ([tT]est\w+)\b", source, re.MULTILINE))
        if not defined[file] or (name and name not in defined[file]):
            missing.add(test)
    assert missing == set()


@pytest.mark.parametrize("page", sorted(PROMISES))
def test_each_page_has_enough_promises_with_tests(rows: list[Row], page: str) -> None:
    assert len([row for row in rows if Path(row.page).stem == page]) >= PROMISES[page]


def test_user_pages_name_no_tests(repository: Path) -> None:
    """Code examples may name tests, as pages may show tests of a user's program."""
    named = set()
    for path in (repository / "docs").rglob("*.md"):
        if INTERNALS not in path.parents:
            prose = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
            named |= {(path.name, name) for name in re.findall(r"\btest_\w+|\bTest[A-Z]\w+(?=`)", prose)}
    assert named == set()


def test_internal_pages_name_existing_test_files(repository: Path) -> None:
    known = {path.name for path in (repository / "tests").rglob("*.py")}
    for path in sorted(INTERNALS.glob("*.md")):
        named = set(re.findall(r"\btest_\w+\.py\b", path.read_text("utf-8")))
        assert {name for name in named if name not in known} == set(), path.name
