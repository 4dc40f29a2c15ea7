"""What was running when the suite was stopped in the middle: a run that hangs tells where."""

from __future__ import annotations

import time
from typing import Final

import pytest

#: By this name pytest knows the plug-in.
NAME: Final = "running-tests"


class RunningTests:
    """Notes which tests have begun and not ended, in the process that hands them out."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Also called for tests of the other processes of pytest-xdist."""
        self._begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Nothing where all have ended."""
        for nodeid, begun in self._begun.items():
            terminalreporter.write_line(f"still running: {nodeid}, since {time.monotonic() - begun:.0f} s")
