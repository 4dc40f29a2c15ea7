"""The documents name tests that show what they promise: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: How many tests a document names at least; the others of docs/ may name none.
NAMED = {"producing.md": 1, "consuming.md": 10, "retry.md": 10, "delay.md": 10, "spark.md": 40}


@pytest.fixture(scope="module")
def sources(repository: Path) -> dict[str, str]:
    """What each file of tests/ says, by its path there."""
    root = repository / "tests"
    return {str(path.relative_to(root)): path.read_text("utf-8") for path in root.rglob("*.py")}


@pytest.mark.parametrize(
    "document", sorted(path.name for path in (Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
)
def test_every_test_that_is_named_exists(repository: Path, sources: dict[str, str], document: str) -> None:
    text = (repository / "docs" / document).read_text("utf-8")
    known = sources.keys() | {Path(name).name for name in sources}
    files = set(re.findall(r"\b(?:(?:unit|contract|integration|crash|chaos|soak|interop)/)?[\w/]*test_\w+\.py", text))
    assert not {name for name in files if name.removeprefix("tests/") not in known}
    defined = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", "\n".join(sources.values()), re.MULTILINE))
    names = set(re.findall(r"\btest_\w+\b(?!\.py|\*|/)", text))
    assert not names - defined
    assert len(names) >= NAMED.get(document, 0)


@pytest.mark.parametrize(
    "section",
    ["What a write promises", "When the end of a write is not known", "What is promised", "When something fails"],
)
def test_every_statement_of_what_the_spark_bridge_promises_names_its_test(repository: Path, section: str) -> None:
    text = (repository / "docs" / "spark.md").read_text("utf-8")
    begin = text.index(f"### {section}\n")
    lines = text[begin : text.index("\n#", begin)].splitlines()
    _head, _rule, *rows = [line for line in lines if line.startswith("|")]
    assert len(rows) >= 4
    assert [row for row in rows if not re.search(r"test_\w+[^|]*\|$", row) and "the same tests" not in row] == []
