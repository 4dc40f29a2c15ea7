"""Test the table of in-flight messages and its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightQueue, InFlightTable
from raymq.storage.tables.journal import Journal
from tests.store_records import SMALL, append, make_record

QUEUE = ("g", "t", 0)
FIRST = InFlightMessage(1_000, 2_000, 0, 16)


def test_in_flight_table_survives_reopen_and_rewrite(tmp_path: Path) -> None:
    table = InFlightTable(tmp_path / "journal", writable=True)
    table.deliver(QUEUE, 3, {0: FIRST, 2: FIRST})
    table.deliver(("h", "t", 1), 9, {8: FIRST})
    table.acknowledge(QUEUE, [0])
    table.deliver(QUEUE, 5, {2: FIRST._replace(pop_time_ms=1_500), 4: FIRST})
    table.deliver(("x", "t", 0), 1, {0: FIRST})
    table.forget(("x", "t", 0))
    table.forget(("never", "t", 0))
    table.acknowledge(("h", "t", 1), [8])
    expected = {QUEUE: InFlightQueue(5, {2: InFlightMessage(1_500, 2_000, 0, 16), 4: FIRST})}
    assert table.queues == expected
    for rewrite in (False, True, False):
        table.close(rewrite=rewrite)
        table = InFlightTable(tmp_path / "journal", writable=True)
        assert table.queues == expected
    table.close(rewrite=True)


def test_read_only_store_shows_in_flight_messages(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(topic="t"))
        store.in_flight.deliver(QUEUE, 1, {0: FIRST})
    with Store.open(tmp_path, read_only=True) as store:
        assert list(store.in_flight.queues) == [QUEUE]
        with pytest.raises(StoreError):
            store.in_flight.acknowledge(QUEUE, [0])
        assert list(store.in_flight.queues) == [QUEUE]


def test_torn_journal_end_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    table = InFlightTable(path, writable=True)
    table.deliver(QUEUE, 1, {0: FIRST})
    whole = path.stat().st_size
    table.acknowledge(QUEUE, [0])
    table.close(rewrite=False)
    for size in range(whole, path.stat().st_size):
        copy = tmp_path / f"copy-{size}"
        copy.write_bytes(path.read_bytes()[:size])
        assert list(InFlightTable(copy, writable=False).queues) == [QUEUE]


def test_deliveries_of_older_versions_have_no_duration(tmp_path: Path) -> None:
    path = tmp_path / "in_flight.journal"
    journal = Journal(path, writable=True)
    journal.append(("d", *QUEUE, 5, [[2, 1_000, 2_000, 0, 16]]))
    journal.close()
    table = InFlightTable(path, writable=False)
    assert table.queues[QUEUE].deliveries == {2: InFlightMessage(1_000, 2_000, 0, 16, 0)}
    table.close(rewrite=False)
