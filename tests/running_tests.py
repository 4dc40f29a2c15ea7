"""A pytest plug-in that reports which tests were running when the suite was stopped."""

from __future__ import annotations

import time
from typing import Final

import pytest

#: The name of the plug-in in pytest.
NAME: Final = "running-tests"


class RunningTests:
    """Records the tests that have begun and not ended, in the process that distributes them."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the start of a test, also in another process of pytest-xdist."""
        self._begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the tests that have not ended."""
        for nodeid, begun in self._begun.items():
            terminalreporter.write_line(f"still running: {nodeid}, since {time.monotonic() - begun:.0f} s")
