"""Split long work into steps, so that an event loop can run other tasks between.

A generator of steps yields after each step. It yields None if the next step belongs to the same thread; or it yields a
function, which may run in any thread and must have run before the generator is resumed. The generator's return value is
the result.

A step takes about two milliseconds at most. It ends after a number of items, not of milliseconds, so that the work
between two yields is the same on every machine and tests can count it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

#: A generator as the module docstring describes it.
Steps = Generator[Callable[[], None] | None, None, T]


def run_steps(steps: Steps[T]) -> T:
    """Run all steps at once in this thread and return their result."""
    while True:
        try:
            aside = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if aside is not None:
            aside()


def map_steps(function: Callable[[S], T], items: Iterable[S], at_once: int) -> Steps[list[T]]:
    """Apply `function` to each item, `at_once` items in each step, and return the results.

    At most `at_once` items are a single step.
    """
    results: list[T] = []
    for item in items:
        if results and len(results) % at_once == 0:
            yield None
        results.append(function(item))
    return results
