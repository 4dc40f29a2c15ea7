"""Which seeds a fuzz tries, and what is said of one that fails.

RAYMQ_FUZZ_SEED is the first seed, RAYMQ_FUZZ_RUNS how many are tried. A failure says both, and what was done.

    RAYMQ_FUZZ_SEED=17 RAYMQ_FUZZ_RUNS=1 .venv/bin/python -m pytest tests/fuzz/test_pop.py
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.store import Store

_FIRST: Final = int(os.environ.get("RAYMQ_FUZZ_SEED", "1"))
_RUNS: Final = os.environ.get("RAYMQ_FUZZ_RUNS")


class Fuzz(Protocol):
    """One seed's.

    Attributes:
        told: what was done, and what came of it.
    """

    told: list[str]

    def live(self) -> None:
        """All of it; an assertion fails where the real classes do what the model does not allow."""


def seeded(*, many: int, few: int = 0) -> pytest.MarkDecorator:
    """A test is run with so many seeds, and with many under the marker `long`; without few ones only there."""
    long = [pytest.mark.long, pytest.mark.timeout(3_600)]
    forms = [pytest.param(_seeds(few), id="few")] if few else []
    return pytest.mark.parametrize("seeds", [*forms, pytest.param(_seeds(many), id="many", marks=long)])


def try_each(seeds: range, root: Path, fuzz: Callable[[Path, int], Fuzz]) -> None:
    """A life in a directory of its own for each seed."""
    for seed in seeds:
        random.seed(seed)  # pop takes queues in any order
        directory = root / str(seed)
        directory.mkdir()
        tried = fuzz(directory, seed)
        try:
            tried.live()
        except BaseException as error:
            error.add_note(f"RAYMQ_FUZZ_SEED={seed} RAYMQ_FUZZ_RUNS=1 repeats it: {'; '.join(tried.told)}")
            raise
        shutil.rmtree(directory)


def do(told: list[str], work: Callable[[], None], store: Callable[[], Store], kill: Callable[[], None]) -> None:
    """Do one work, and tell it; where the store has failed over it, its process ends."""
    told.append(work.__name__)
    try:
        work()
    except StoreError as error:
        told.append(type(error).__name__)
        if not store().is_healthy:
            kill()


def _seeds(runs: int) -> range:
    return range(_FIRST, _FIRST + int(_RUNS or runs))
