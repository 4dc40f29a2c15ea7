"""Which cases `make test` leaves to `make test-nightly`: most of each sweep, and the second run in NumPy.

A sweep is one test at every byte, step, size or seed; --whole-sweeps runs all of it. `pytestmark =
pytest.mark.sweep(every=4)` marks a file, `@pytest.mark.sweep(every=4)` a function. What asks for `batch_code` runs
compiled where raymq-native is installed, else in NumPy; --numpy runs the cases in NumPy that are left out so.
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
    """Which tests are run, and which are not: of each marked function every n-th case is, and the last one."""
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            cases[str(item.path), item.nodeid.partition("[")[0]].append(item)
    left = {case for each in cases.values() for case in _left_out(each)}
    return [item for item in items if item not in left], [item for item in items if item in left]


def filter_batch_code(
    items: Sequence[pytest.Item], *, numpy: bool, is_compiled: bool | None = None
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return which tests are run, and which are not.

    Args:
        numpy: only what is done for batches, in NumPy; else everything, but that not in NumPy where it is compiled.
        is_compiled: whether raymq-native is installed.
    """
    if is_compiled is None:
        is_compiled = importlib.util.find_spec("raymq_native") is not None
    if numpy:
        kept = [item for item in items if _batch_code(item) == "numpy"]
    else:
        kept = [item for item in items if not is_compiled or _batch_code(item) != "numpy"]
        if not kept:  # these alone were asked for by name
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
