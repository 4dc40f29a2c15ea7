"""Programs that users are shown, run as users run them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def output_of(*arguments: str, directory: Path, logged: str = "", warnings: str = "") -> str:
    """Return what `python ARGUMENTS` prints, in a Ray of its own; it must succeed.

    Ray's own lines about workers that died are left out.

    Args:
        logged: how stderr ends: the warning that the program shows. "": nothing may be there.
        warnings: a regular expression of the lines that may be on stderr besides.
    """
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )
    unexpected = [line for line in ended.stderr.splitlines() if not (warnings and re.match(warnings, line))]
    assert (ended.returncode, unexpected if not logged else []) == (0, []), ended.stderr
    assert ended.stderr.rstrip().endswith(logged)
    return "".join(line for line in ended.stdout.splitlines(keepends=True) if "(raylet)" not in line)


def run(*command: str, environment: Mapping[str, str], seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    """A program in a terminal of its own; it must end within `seconds`."""
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)


@contextlib.contextmanager
def terminal(
    *command: str, environment: Mapping[str, str], directory: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program in the foreground of another terminal, in a session of its own; killed at the end if need be."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=directory, start_new_session=True
    ) as it:
        try:
            yield it
        finally:
            it.kill()
