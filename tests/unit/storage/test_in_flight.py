"""Test that the table of in-flight messages survives restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.state_opening import open_state
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightQueue, InFlightTable
from raymq.storage.tables.state_tables import StateTables
from tests.state_journals import append_frames, open_table, open_tables
from tests.store_records import SMALL, append, make_record

QUEUE = ("g", "t", 0)
FIRST = InFlightMessage(1_000, 2_000, 0, 16)


def test_in_flight_table_survives_kills_and_compactions(tmp_path: Path) -> None:
    table = open_table(tmp_path, InFlightTable())
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
    for compacts in (False, True, False):
        table = InFlightTable()
        journal = open_tables(tmp_path, table)
        assert table.queues == expected
        journal.close(compact=compacts)


def test_many_in_flight_messages_survive_a_compaction(tmp_path: Path) -> None:
    # A snapshot has several events for such a queue.
    table = InFlightTable()
    journal = open_tables(tmp_path, table)
    table.deliver(QUEUE, 2_000, dict.fromkeys(range(1_300), FIRST))
    journal.close(compact=True)
    again = open_table(tmp_path, InFlightTable())
    assert again.queues == {QUEUE: InFlightQueue(2_000, dict.fromkeys(range(1_300), FIRST))}


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
    table = open_table(tmp_path, InFlightTable())
    (path,) = (tmp_path / "raymq" / "state").iterdir()
    table.deliver(QUEUE, 1, {0: FIRST})
    whole = path.stat().st_size
    table.acknowledge(QUEUE, [0])
    for size in range(whole, path.stat().st_size):
        copy = tmp_path / f"copy-{size}"
        (copy / "raymq" / "state").mkdir(parents=True)
        (copy / "raymq" / "state" / path.name).write_bytes(path.read_bytes()[:size])
        assert list(open_table(copy, InFlightTable(), writable=False).queues) == [QUEUE]


@pytest.mark.parametrize("of_format_1", [False, True])
def test_deliveries_of_older_versions_have_no_duration(tmp_path: Path, of_format_1: bool) -> None:
    event = ("d", *QUEUE, 5, [[2, 1_000, 2_000, 0, 16]])
    if of_format_1:
        append_frames(tmp_path / "raymq" / "in_flight.journal", event)
    else:
        open_table(tmp_path, InFlightTable()).record(*event)
    tables = StateTables()
    open_state(StorePaths(tmp_path), tables, lambda _: None, writable=False)
    assert tables.in_flight.queues[QUEUE].deliveries == {2: InFlightMessage(1_000, 2_000, 0, 16, 0)}
