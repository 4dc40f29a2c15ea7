"""What a forked child sees."""

from __future__ import annotations

import os
from collections.abc import Callable


def run_in_child(look: Callable[[], str]) -> str:
    """What `look` returns in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, look().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        seen = told.read()
    os.waitpid(child, 0)
    return seen
