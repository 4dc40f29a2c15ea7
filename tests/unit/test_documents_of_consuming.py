"""The documents of the consuming side name tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("document", ["consuming.md", "retry.md", "delay.md"])
def test_every_test_that_is_named_exists(repository: Path, document: str) -> None:
    text = (repository / "docs" / document).read_text("utf-8")
    files = set(re.findall(r"(?:unit|contract|integration|crash|chaos)/[\w/]+\.py", text))
    assert len(files) > 5
    sources = {name: (repository / "tests" / name).read_text("utf-8") for name in files}
    everything = "".join(sources.values())
    names = set(re.findall(r"\btest_\w+\b(?!\.py)", text))
    assert len(names) > 10
    assert not {name for name in names if f"def {name}(" not in everything}
