"""Select the cases that `make test` leaves to `make test-nightly`.

A sweep is one test at every byte, step, size or seed; --whole-sweeps runs all of it. `pytestmark =
pytest.mark.sweep(every=4)` marks a file, `@pytest.mark.sweep(every=4)` a function. Tests with `batch_code` run
compiled if raymq-native is installed, else in NumPy; --numpy runs the NumPy cases that are left out this way.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

OPTION: Final = "--whole-sweeps"
NUMPY: Final = "--numpy"


def sample_cases(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run and the others: every n-th and the last case of each sweep."""
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            cases[str(item.path), item.nodeid.partition("[")[0]].append(item)
    left = {case for each in cases.values() for case in _left_out(each)}
    return [item for item in items if item not in left], [item for item in items if item in left]


def filter_batch_code(
    items: Sequence[pytest.Item], *, numpy: bool, is_compiled: bool | None = None
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run and the others, by their batch code.

    Args:
        numpy: whether to run only the NumPy cases; else all cases but those in NumPy, if compiled code exists.
        is_compiled: whether raymq-native is installed.
    """
    if is_compiled is None:
        is_compiled = importlib.util.find_spec("raymq_native") is not None
    if numpy:
        kept = [item for item in items if _batch_code(item) == "numpy"]
    else:
        kept = [item for item in items if not is_compiled or _batch_code(item) != "numpy"]
        if not kept:  # only NumPy cases were selected by name
            return list(items), []
    left = {id(item) for item in items} - {id(item) for item in kept}
    return kept, [item for item in items if id(item) in left]


def _batch_code(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("batch_code")


def _left_out(cases: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    marker = cases[0].get_closest_marker("sweep")
    assert marker is not None
    every: int = marker.kwargs["every"]
    return (case for number, case in enumerate(cases[:-1]) if number % every)
