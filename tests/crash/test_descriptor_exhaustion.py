"""Test that exhausted descriptors or memory give retriable errors, and that the store recovers by itself."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy, StoreError, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests.crash import few_descriptors
from tests.faulty_calls import FaultyCalls
from tests.store_records import SMALL, append, bodies, make_record

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


def test_log_rolls_at_descriptor_limit_and_store_recovers(tmp_path: Path) -> None:
    """Guard against fault 13.24: EMFILE at a log roll made the broker refuse writes for good."""
    script = [sys.executable, "-m", few_descriptors.__name__, str(tmp_path / "store")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr


def use_store(store: Store, round_number: int) -> list[StoreError]:
    """Do work that opens, maps and duplicates files; return the errors."""
    stored = len(bodies(store))
    works: tuple[Callable[[], object], ...] = (
        lambda: [append(store, make_record(b"%d" % number)) for number in range(stored, stored + 40)],
        lambda: append(store, *[make_record(b"x", topic=f"topic-{round_number}-{n}") for n in range(4)]),
        store.flush,
        store._save_checkpoint,
    )
    met = []
    for work in works:
        try:
            work()
        except StoreError as error:
            met.append(error)
    return met


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("kind", ["open", "duplicate", "map"])
def test_failed_file_open_is_retriable_and_store_recovers(tmp_path: Path, kind: str, error: int) -> None:
    met: list[StoreError] = []
    with Store.open(tmp_path, CONFIG) as store:
        append(store, make_record(b"0"))
        for nth in range(1, 9):
            with replaced(FaultyCalls(kind, nth, error, lasting=True)):
                met += use_store(store, nth)
            assert store._parts.health.is_healthy
            found = [int(body) for body in bodies(store)]
            assert found == list(range(len(found)))
            append(store, make_record(b"%d" % len(found)))
            store.flush()
            store._save_checkpoint()
    assert met
    assert [each for each in met if not isinstance(each, StoreBusy) or not each.retriable] == []
    with Store.open(tmp_path, CONFIG) as store:
        assert store.recovery.clean


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["open", "map", "allocate"])
def test_batch_at_failed_log_roll_is_refused_whole(tmp_path: Path, kind: str, error: int) -> None:
    """The first messages were stored, the roll failed, and the store refused all appends until it was reopened."""
    few = [make_record(bytes(300)) for _ in range(5)]
    with Store.open(tmp_path, CONFIG) as store:
        for _ in range(30):
            before = store.max_physical_offset
            with replaced(FaultyCalls(kind, 1, error, lasting=True)):
                try:
                    append(store, *few)
                except StoreFull:
                    assert store.max_physical_offset == before
            assert store._parts.health.is_healthy
        append(store, *few)
        assert len(bodies(store)) % 5 == 0
