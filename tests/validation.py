"""Check the invariants of an object at the end of its test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class _Valid(Protocol):
    def validate(self) -> None: ...


_T = TypeVar("_T", bound=_Valid)


@contextmanager
def validated(subject: _T) -> Iterator[_T]:
    """Yield an object to the test, and `validate` it afterwards."""
    yield subject
    subject.validate()
