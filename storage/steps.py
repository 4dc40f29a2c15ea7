"""Work that is done in steps, so that who owns a loop can let others have their turn between two of them.

A generator of steps yields after each one: None where the next step belongs to the same thread, or a function that may
be run in any thread, and has been run when the generator goes on. What it returns is the result.

A step is some two milliseconds of work at most. It ends after a number of items, not of milliseconds: so what is done
between two yields is the same on every machine, and tests count it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

S = TypeVar("S")
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


def mapped(function: Callable[[S], T], items: Iterable[S], at_once: int) -> Steps[list[T]]:
    """What `function` makes of each item, `at_once` of them in a step. So few items as that are one step, no more."""
    made: list[T] = []
    for item in items:
        if made and len(made) % at_once == 0:
            yield None
        made.append(function(item))
    return made
