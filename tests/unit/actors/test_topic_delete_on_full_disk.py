"""Test topic deletion on a full disk: old offsets and deliveries never apply to a new topic."""

from __future__ import annotations

import contextlib
import errno

import pytest

from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.errors import StoreFull
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.bench import Bench
from tests.validation import check_invariants

POP = PopRequest("poppers", "t", range(1), 3, 1 << 20, 30_000, 16)


def delete_on_full_disk(bench: Bench, nth: int, *, lasting: bool) -> bool:
    """Delete topic t, used by two groups, while the nth write fails.

    Return whether the topic is gone.
    """
    bench.core.ensure_group("g")
    bench.core.ensure_group("poppers")
    bench.append(*(Message("t", b"old %d" % n) for n in range(20)))
    bench.core.offsets.commit("g", "t", 0, 15)
    bench.core.reset_offset("g", "t", 1, 0)
    assert bench.core.pop.receive(POP).queues
    with replaced(FaultyCalls("write", nth, errno.ENOSPC, lasting=lasting)), contextlib.suppress(StoreFull):
        bench.core.topics.delete("t")
    return "t" not in bench.core.topics or bench.core.bounds("t", 0) == (0, 0)


def recreate_topic(bench: Bench) -> None:
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 2)
    bench.append(*(Message("t", b"new %d" % n) for n in range(20)))


def pop_offsets(bench: Bench) -> list[list[int]]:
    return [list(queue.taken.offsets) for queue in bench.core.pop.receive(POP).queues]


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("restarted", [False, True])
def test_old_offsets_and_deliveries_do_not_return(bench: Bench, nth: int, lasting: bool, restarted: bool) -> None:
    """Guard against a kill that restores entries which were deleted in memory only."""
    if not delete_on_full_disk(bench, nth, lasting=lasting):
        assert bench.core.offsets.get("g", "t", 0) == 15
        bench.crash()
        assert bench.core.offsets.get("g", "t", 0) == 15
        return
    if restarted:
        bench.crash()
    if "t" not in bench.core.topics or not restarted:
        recreate_topic(bench)
    else:  # its settings could not be deleted
        bench.append(*(Message("t", b"new %d" % n) for n in range(20)))
    for _ in range(2):
        bench.crash()
        assert bench.core.offsets.get("g", "t", 0) is None
        assert not bench.store.consumer_offsets.is_reset_pending("g", "t", 1)
    assert pop_offsets(bench) == [[0, 1, 2]]
    check_invariants(bench.core.pop)


@pytest.mark.parametrize("nth", range(2, 6))
@pytest.mark.parametrize("stop", ["kill", "clean"])
def test_progress_in_new_topic_is_kept(bench: Bench, nth: int, stop: str) -> None:
    """Keep the new topic's progress although the deletion met a full disk."""
    if not delete_on_full_disk(bench, nth, lasting=False):
        return
    recreate_topic(bench)
    bench.core.offsets.commit("g", "t", 0, 3)
    assert pop_offsets(bench) == [[0, 1, 2]]
    for _ in range(2):
        if stop == "kill":
            bench.crash()
        else:
            bench.core.timers.close()
            bench.store.close()
            bench.open()
        assert bench.core.offsets.get("g", "t", 0) == 3
        assert bench.store.in_flight.queues["poppers", "t", 0].next_offset == 3
    assert pop_offsets(bench) == [[3, 4, 5]]


def test_topic_delete_writes_one_event_for_all_groups(bench: Bench) -> None:
    """Guard against an entry for each group: 5,000 groups took 40 ms of the loop."""
    for number in range(50):
        bench.core.ensure_group(f"g{number}")
        bench.append(Message("t", b"x"))
        bench.core.offsets.commit(f"g{number}", "t", 0, 1)
    bench.store.consumer_offsets.commit("other", "u", 0, 7)
    before = bench.store._parts.journal.last
    bench.core.topics.delete("t")
    assert bench.store._parts.journal.last - before <= 2, "the topic's settings and its deletion"
    bench.core.topics.create("t", 1)
    bench.append(*(Message("t", b"x") for _ in range(3)))
    assert bench.store.consumer_offsets.groups() == ["other"]
    bench.crash()
    assert bench.store.consumer_offsets.groups() == ["other"]


@pytest.mark.parametrize("nth", range(1, 9))
def test_old_handle_acknowledges_nothing_of_new_topic(bench: Bench, nth: int) -> None:
    """Guard against in-flight entries that stay in memory after a failed write."""
    bench.core.ensure_group("poppers")
    for queue_id in range(2):
        bench.append(*(Message("t", b"old %d" % n) for n in range(3)), queue_id=queue_id)
    both = PopRequest("poppers", "t", range(2), 32, 1 << 20, 600_000, 16)
    popped_ms = bench.core.pop.receive(both).pop_time_ms
    with replaced(FaultyCalls("write", nth, errno.ENOSPC)), contextlib.suppress(StoreFull):
        bench.core.topics.delete("t")
    if bench.store.queues("t"):
        return  # it was refused as a whole
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 2)
    for queue_id in range(2):
        bench.append(*(Message("t", b"new %d" % n) for n in range(3)), queue_id=queue_id)
        one = PopRequest("poppers", "t", range(queue_id, queue_id + 1), 1, 1 << 20, 600_000, 16)
        assert [list(each.taken.offsets) for each in bench.core.pop.receive(one).queues] == [[0]]
        assert bench.core.pop.acknowledge("poppers", "t", queue_id, popped_ms, range(3)) == 0
    assert sorted(list(each.taken.offsets) for each in bench.core.pop.receive(both).queues) == [[1, 2]] * 2
    check_invariants(bench.core.pop)


def test_journaled_offsets_survive_loss_of_offset_file(bench: Bench) -> None:
    """Guard against taking journaled offsets of a recreated topic for the old topic's."""
    bench.core.ensure_group("g")
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 1)
    bench.append(*(Message("t", b"new") for _ in range(20)))
    bench.crash()
    bench.core.offsets.commit("g", "t", 0, 12)
    bench.store._flusher.stop()
    bench.store._abandon()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (bench.directory / "config" / name).unlink(missing_ok=True)
    bench.open()
    assert bench.core.offsets.get("g", "t", 0) == 12
