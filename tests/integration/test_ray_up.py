"""Test `ray up` with the file of configs/ on hosts that are namespaces of this machine.

Three Rays start and stop several times, which takes too long for the normal suite on two busy cores (`make soak`).
`make test-rayup` does more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rayup.run import reason_not_to

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(reason_not_to() is not None, reason=f"{reason_not_to()}"),
]


def rayup(folder: Path, *arguments: str, seconds: int) -> str:
    """Run tests.rayup and return its output; the run must succeed."""
    command = [sys.executable, "-m", "tests.rayup.run", "--folder", str(folder), "--seconds", str(seconds), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(620)
def test_cluster_survives_host_loss_and_shuts_down(tmp_path: Path) -> None:
    assert "from `ray up` to the first message" in rayup(tmp_path / "run", seconds=600)


@pytest.mark.timeout(1_520)
def test_ray_faults_under_load_lose_no_acknowledged_message(tmp_path: Path) -> None:
    """Break raylets, the GCS and the head node while clients work."""
    assert "all promises kept" in rayup(tmp_path / "run", "--faults", "8", seconds=1_500)
