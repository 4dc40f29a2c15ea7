"""The README's example runs as it stands there, in an empty folder, and says what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_the_example(repository: Path, tmp_path: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 1, "one example, followed by what it prints"
    program, printed = blocks[0]
    assert len([line for line in program.splitlines() if line.strip()]) <= 16
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == printed
