"""Redirect the output of Ray, RayDP and the JVMs from the terminal to a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def redirect_output(log: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """Redirect file descriptors 1 and 2 to `log`, and yield the real stdout and stderr.

    The redirection applies to child processes as well.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        with (
            os.fdopen(os.dup(saved[0]), "w", encoding="utf-8") as out,
            os.fdopen(os.dup(saved[1]), "w", encoding="utf-8") as err,
        ):
            yield out, err
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (*saved, sink):
            os.close(descriptor)
