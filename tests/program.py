"""Programs that users are shown, run as users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def output_of(*arguments: str, directory: Path) -> str:
    """What `python ARGUMENTS` prints, in a Ray of its own; it must succeed and say nothing on stderr."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout
