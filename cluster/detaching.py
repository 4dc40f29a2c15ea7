"""A cluster in the background (`raymq cluster start --detach`): its process, its log file, its end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import psutil

#: Size at which the log file is renamed to `.1`, and how many of those are kept.
_LOG_BYTES: Final = 10 * 1024 * 1024
_LOG_BACKUPS: Final = 3
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PROGRAM: Final = "from raymq.cluster.command import main; main()"


def start_detached(arguments: Sequence[str]) -> str:
    """Run `raymq ARGUMENTS` in a session of its own; return the line that it prints when it is up.

    Signals that come before are passed on to it. Exits with its exit code if it ends without that line; what went
    wrong it has written to stderr.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(which) != signal.SIG_IGN:
                signal.signal(which, lambda number, _: process.send_signal(number))
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(process.wait() or 1)
        process.returncode = 0  # it goes on: it is not waited for
        return line


class LogFile(RotatingFileHandler):
    """The log file of a process without a terminal. What is written to stdout and stderr goes there, too."""

    def __init__(self, path: Path, most_bytes: int = _LOG_BYTES) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=_LOG_BACKUPS, encoding="utf-8")
        self.setFormatter(logging.Formatter(_FORMAT))
        self._has_outputs = False

    def take_outputs(self) -> None:
        """Send stdout and stderr of this process to the file from now on."""
        self._has_outputs = True
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        file = self.stream or self._open()
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        """Go on in a new file, as `RotatingFileHandler` does."""
        super().doRollover()
        if self._has_outputs:
            self.take_outputs()


def await_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended, for at most `seconds`."""
    with contextlib.suppress(psutil.Error):
        psutil.Process(pid).wait(seconds)
