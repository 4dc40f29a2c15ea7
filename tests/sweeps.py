"""Sweeps: one test at every byte, step, size or seed. `make test` runs some of each, `make soak` all (--whole-sweeps).

`pytestmark = pytest.mark.sweep(every=4)` marks a file, `@pytest.mark.sweep(every=4)` a function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

OPTION: Final = "--whole-sweeps"


def thinned(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Which tests are run, and which are not: of each marked function every n-th case is, and the last one."""
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            cases[str(item.path), item.nodeid.partition("[")[0]].append(item)
    left = {case for each in cases.values() for case in _left_out(each)}
    return [item for item in items if item not in left], [item for item in items if item in left]


def _left_out(cases: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    marker = cases[0].get_closest_marker("sweep")
    assert marker is not None
    every: int = marker.kwargs["every"]
    return (case for number, case in enumerate(cases[:-1]) if number % every)
