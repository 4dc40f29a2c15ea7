"""Work that is done in steps, so that who owns a loop can let others have their turn between two of them.

A generator of steps yields after each one: None where the next step belongs to the same thread, or a function that may
be run in any thread, and has been run when the generator goes on. What it returns is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

#: See this file's first lines.
Steps = Generator[Callable[[], None] | None, None, T]


def finish(steps: Steps[T]) -> T:
    """All steps at once, in this thread; their result."""
    while True:
        try:
            aside = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if aside is not None:
            aside()
