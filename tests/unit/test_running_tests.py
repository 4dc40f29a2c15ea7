"""Test that an interrupted test run reports which tests were running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import poll_until

HANGS = """
import time
def test_ends(): pass
def test_hangs(): time.sleep(600)
"""


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_ctrl_c_reports_the_running_test(tmp_path: Path, repository: Path, processes: tuple[str, ...]) -> None:
    if processes:
        pytest.importorskip("xdist")
    suite = tmp_path / "test_made.py"
    suite.write_text(HANGS)
    (tmp_path / "conftest.py").write_text(
        "import signal\n"
        "from tests import running_tests\n"
        "def pytest_configure(config):\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    if not hasattr(config, 'workerinput'):\n"
        "        config.pluginmanager.register(running_tests.RunningTests(), running_tests.NAME)\n"
    )
    output = tmp_path / "output"
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *processes, str(suite)]
    environment = os.environ | {"PYTHONPATH": str(repository)}
    with (
        output.open("wb") as file,
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file) as run,
    ):
        try:
            poll_until(lambda: "::test_hangs" in output.read_text("utf-8"), timeout=60)
            run.send_signal(signal.SIGINT)
            run.wait(60)
        finally:
            run.kill()
    text = output.read_text("utf-8")
    assert "still running: test_made.py::test_hangs, since" in text
    assert "still running: test_made.py::test_ends" not in text
