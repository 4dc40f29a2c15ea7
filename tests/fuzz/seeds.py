"""Choose the seeds of a fuzz test, and describe a failing one.

RAYMQ_FUZZ_SEED is the first seed, RAYMQ_FUZZ_RUNS the number of seeds. A failure prints both, and the operations.

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
    """A fuzz test of one seed.

    Attributes:
        log: the operations and their results.
    """

    log: list[str]

    def live(self) -> None:
        """Run everything; an assertion fails where the real classes differ from the model."""


def seeded(*, many: int, few: int = 0) -> pytest.MarkDecorator:
    """Run a test with so many seeds, and with many under the marker `long`; without few ones only there."""
    long = [pytest.mark.long, pytest.mark.timeout(3_600)]
    forms = [pytest.param(_seeds(few), id="few")] if few else []
    return pytest.mark.parametrize("seeds", [*forms, pytest.param(_seeds(many), id="many", marks=long)])


def try_each(seeds: range, root: Path, fuzz: Callable[[Path, int], Fuzz]) -> None:
    """Run the fuzz test for each seed, in a directory of its own."""
    for seed in seeds:
        random.seed(seed)  # pop takes queues in random order
        directory = root / str(seed)
        directory.mkdir()
        tried = fuzz(directory, seed)
        try:
            tried.live()
        except BaseException as error:
            error.add_note(f"RAYMQ_FUZZ_SEED={seed} RAYMQ_FUZZ_RUNS=1 repeats it: {'; '.join(tried.log)}")
            raise
        shutil.rmtree(directory)


def do(log: list[str], work: Callable[[], None], store: Callable[[], Store], kill: Callable[[], None]) -> None:
    """Do one operation and log it; end the process if the store failed."""
    log.append(work.__name__)
    try:
        work()
    except StoreError as error:
        log.append(type(error).__name__)
        if not store().is_healthy:
            kill()


def _seeds(runs: int) -> range:
    return range(_FIRST, _FIRST + int(_RUNS or runs))
