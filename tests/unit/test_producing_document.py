"""docs/producing.md names tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_test_that_is_named_exists(repository: Path) -> None:
    text = (repository / "docs" / "producing.md").read_text("utf-8")
    files = set(re.findall(r"(?:unit|contract|integration|chaos)/[\w/]+\.py", text))
    assert len(files) > 10
    sources = {name: (repository / "tests" / name).read_text("utf-8") for name in files}
    everything = "".join(sources.values())
    names = set(re.findall(r"\btest_\w+\b(?!\.py)", text))
    assert names
    assert not {name for name in names if f"def {name}(" not in everything}
