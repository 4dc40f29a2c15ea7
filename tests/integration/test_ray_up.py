"""`ray up` with the file of configs/, on hosts that are namespaces of this machine.

Three Rays start and stop, several times: on two busy cores that takes longer than a suite can wait (`make soak`).
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


@pytest.mark.timeout(620)
def test_a_cluster_is_made_loses_a_host_and_is_taken_down(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rayup.run", "--folder", str(tmp_path / "run"), "--seconds", "600"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "from `ray up` to the first message" in ended.stdout
