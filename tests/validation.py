"""What must always hold of a thing is looked at when its test ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class _Valid(Protocol):
    def validate(self) -> None: ...


_T = TypeVar("_T", bound=_Valid)


@contextmanager
def validated(made: _T) -> Iterator[_T]:
    """Lend it to the test, and `validate` it afterwards."""
    yield made
    made.validate()
