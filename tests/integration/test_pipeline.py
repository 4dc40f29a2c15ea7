"""Test that the pipeline of examples/ resumes after a kill and counts every flight once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.polling import poll_until

pytest.importorskip("raydp")

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).resolve().parents[2] / "examples" / "pipeline_flights.py"


def batches(folder: Path) -> int:
    """Return how many batches Spark has committed."""
    return len([path for path in folder.glob("checkpoints/per-hour/commits/*") if path.name.isdigit()])


def test_killed_pipeline_resumes_and_counts_flights_once(tmp_path: Path) -> None:
    command = [sys.executable, str(PIPELINE), str(tmp_path)]
    for _ in range(2):
        done = batches(tmp_path)
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            poll_until(lambda: batches(tmp_path) >= done + 2 or process.poll() is not None, 200)  # noqa: B023
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        finally:
            # Kill all at once: in a container whose init reaps no processes, Ray's workers outlive their node.
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                    each.kill()
            process.wait()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "12056 flights in 743 hours, 152 reported late: exact"
