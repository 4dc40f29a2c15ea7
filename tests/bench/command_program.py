"""A program beside a bench that reads a command line from standard input and answers with a line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


class CommandProgram:
    """A running program: from its first line (`.ready`) until the end of a `with` block. One thread."""

    def __init__(
        self, command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=folder,
                env=environment,
            )
        self.pid = self._process.pid
        self.ready = self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tell(self, line: str) -> None:
        """Have it begin; `answer` waits for it."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> str:
        """Its next line; ChildProcessError if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"it ended: {self._log.read_text(errors='replace')[-500:]}")
        return line.strip()
