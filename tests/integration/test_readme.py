"""The README's example runs as it stands there, in an empty folder, and says what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.program import output_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_the_example(repository: Path, tmp_path: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 1, "one example, followed by what it prints"
    program, printed = blocks[0]
    assert len([line for line in program.splitlines() if line.strip()]) <= 16
    assert output_of("-c", program, directory=tmp_path) == printed
