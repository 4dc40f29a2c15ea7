"""A cluster in the background: its process, its log file, its end.

It is started by `raymq cluster start --detach`.
"""

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

#: The size at which the log file is renamed to `.1`, and the number of renamed files that are kept.
_LOG_BYTES: Final = 10 * 1024 * 1024
_LOG_BACKUPS: Final = 3
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PROGRAM: Final = "from raymq.cluster.command import main; main()"


def start_detached(arguments: Sequence[str]) -> str:
    """Run `raymq ARGUMENTS` in a new session, and return its first line of output.

    It prints this line when it is up. Signals that arrive before are passed on to it. If it ends without that line,
    this process exits with its exit code; the error is on stderr.
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
        process.returncode = 0  # The process keeps running, so Popen must not wait for it.
        return line


class LogFile(RotatingFileHandler):
    """The log file of a process without a terminal, also for its stdout and stderr."""

    def __init__(self, path: Path, most_bytes: int = _LOG_BYTES) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=_LOG_BACKUPS, encoding="utf-8")
        self.setFormatter(logging.Formatter(_FORMAT))
        self._has_outputs = False

    def take_outputs(self) -> None:
        """Redirect stdout and stderr of this process to the file from now on."""
        self._has_outputs = True
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        file = self.stream or self._open()
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        """Continue in a new file, as `RotatingFileHandler` does."""
        super().doRollover()
        if self._has_outputs:
            self.take_outputs()


def await_process_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended, for at most `seconds`."""
    with contextlib.suppress(psutil.Error):
        psutil.Process(pid).wait(seconds)
