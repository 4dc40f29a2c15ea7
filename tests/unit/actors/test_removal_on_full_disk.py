"""Test that a removal refused by a full disk changes nothing, and later succeeds."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from raymq.storage.tables.in_flight_messages import InFlightTable
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table
from tests.unit.actors.pop_bench import PopBench, bodies
from tests.validation import check_invariants


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def full_disk() -> FaultyCalls:
    return FaultyCalls("write", 1, errno.ENOSPC, lasting=True)


@pytest.mark.parametrize("asks_again", [True, False])
def test_reset_ends_deliveries_despite_full_disk(bench: PopBench, asks_again: bool) -> None:
    """Guard against deliveries that a kill brings back after a reset.

    They had been removed in memory only, and messages of the reset became dead letters.
    """
    bench.core.make_group("g")
    bench.send(*(b"%d" % number for number in range(8)))
    first, *others = bench.receive(maximum=0)
    assert bench.ack(first) == [True]
    assert len(others) == 7
    bench.core.offsets.reset("g", "t", 0, 0)
    with replaced(full_disk()), pytest.raises(StoreFull):
        bench.pop.forget("g", "t", 0)
    check_invariants(bench.pop)
    if asks_again:
        bench.core.reset_offset("g", "t", 0, 0)
    a, b, c = bench.receive(3, maximum=0)
    assert bodies([a, b, c]) == [b"0", b"1", b"2"]
    assert bench.ack(a) == [True]
    bench.kill()
    assert bench.ack(b, c) == [True, True]
    bench.clock.advance(31)
    bench.pop.sweep()
    assert bench.dead_letters() == []
    assert bodies(bench.receive()) == [b"3", b"4", b"5", b"6", b"7"]


def test_offsets_of_deleted_group_do_not_return(tmp_path: Path) -> None:
    """Guard against a new group that starts at the offsets of a deleted one."""
    offsets = open_table(tmp_path, ConsumerOffsets())
    offsets.commit("g", "t", 0, 5)
    with replaced(full_disk()), pytest.raises(StoreFull):
        offsets.delete("g", "t")
    assert offsets.get("g", "t", 0) == 5
    assert open_table(tmp_path, ConsumerOffsets(), writable=False).get("g", "t", 0) == 5
    offsets.delete("g", "t")
    assert offsets.get("g", "t", 0) is None
    assert open_table(tmp_path, ConsumerOffsets()).get("g", "t", 0) is None


def test_start_on_full_disk_drops_deleted_group_later(bench: PopBench) -> None:
    bench.send(b"0")
    assert len(bench.receive(1)) == 1
    bench.store.consumer_offsets.delete("g", "t")
    bench.store._flusher.stop()
    bench.store._abandon()

    def full(*_: object) -> None:
        raise StoreFull("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InFlightTable, "forget", full)
        bench.open()
    check_invariants(bench.pop)
    assert bodies(bench.receive(1)) == [b"0"]
    bench.kill()
    assert list(bench.store.in_flight.queues[("g", "t", 0)].deliveries) == [0]
