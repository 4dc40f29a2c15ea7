"""Run the programs of the documentation as users run them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def output_of(*arguments: str, directory: Path, logged: str = "", warnings: str = "") -> str:
    """Return the output of `python ARGUMENTS`, which runs with its own Ray and must succeed.

    Ray's lines about dead workers are left out.

    Args:
        logged: the end of stderr, a warning of the program; "" if stderr must be empty.
        warnings: a regular expression of further lines that are allowed on stderr.
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
    """Run a program and return its result; it must end within `seconds`."""
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)


@contextlib.contextmanager
def terminal(
    *command: str, environment: Mapping[str, str], directory: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a new session, as in another terminal; kill it at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=directory, start_new_session=True
    ) as it:
        try:
            yield it
        finally:
            it.kill()
