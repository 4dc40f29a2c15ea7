"""Test pop with a real store and a fake clock: delivery, acks, renewal, dead letters, kills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.broker.core.pop import pop_service
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.storage.errors import StoreFull
from raymq.storage.records.record import encode
from raymq.storage.tables.in_flight_messages import InFlightTable
from raymq.storage.tables.topic_config import TopicConfig
from tests.store_records import append, flip_byte, log_file, make_record
from tests.unit.actors.filters import parse_filter
from tests.unit.actors.pop_bench import Handle, PopBench, bodies
from tests.validation import check_invariants

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def test_message_is_with_one_consumer_at_a_time(bench: PopBench) -> None:
    bench.send(b"a", b"b", b"c")
    assert bodies(bench.receive(2)) == [b"a", b"b"]
    assert bodies(bench.receive(2)) == [b"c"]
    assert bench.receive() == []
    assert bodies(bench.receive(group="other")) == [b"a", b"b", b"c"]


def test_acknowledged_message_is_not_redelivered(bench: PopBench) -> None:
    bench.send(b"a", b"b")
    assert bench.ack(*bench.receive()) == [True, True]
    bench.clock.advance(100)
    assert bench.receive() == []
    assert bench.committed() == 2


def test_unacknowledged_message_is_redelivered_after_timeout(bench: PopBench) -> None:
    bench.send(b"a", b"b", b"c")
    first = bench.receive(invisible=10)
    bench.ack(first[1])
    bench.clock.advance(9.999)
    bench.pop.sweep()
    assert bench.ready == []
    assert bench.receive() == []
    bench.clock.advance(0.001)
    bench.pop.sweep()
    assert bench.ready == [("g", "t", 0)]
    again = bench.receive()
    assert [(h.body, h.reconsume_times) for h in again] == [(b"a", 1), (b"c", 1)]
    assert bench.ack(*first) == [False, False, False], "handles of the first delivery"
    assert bench.ack(*again) == [True, True]


def test_handle_is_stale_after_invisible_time(bench: PopBench) -> None:
    bench.send(b"a")
    (handle,) = bench.receive(invisible=1)
    bench.clock.advance(1)
    assert bench.ack(handle) == [False]
    assert bench.change(handle, 10) is None
    assert bodies(bench.receive()) == [b"a"]


def test_committed_offset_moves_over_contiguous_acks(bench: PopBench) -> None:
    bench.send(b"a", b"b", b"c", b"d")
    a, b, c, d = bench.receive()
    seen = []
    for handle in (c, a, d, b):
        bench.ack(handle)
        seen.append(bench.committed())
    assert seen == [0, 1, 1, 4]


def test_renewed_handle_replaces_former_one(bench: PopBench) -> None:
    bench.send(b"a")
    (handle,) = bench.receive(invisible=10)
    renewed = bench.change(handle, 50)
    assert renewed is not None
    assert renewed.pop_time_ms > handle.pop_time_ms
    assert bench.ack(handle) == [False]
    assert bench.change(handle, 50) is None
    bench.clock.advance(49)
    assert bench.receive() == []
    assert bench.ack(renewed) == [True]


def test_renewal_may_shorten_invisible_time(bench: PopBench) -> None:
    bench.send(b"a")
    (handle,) = bench.receive(invisible=3600)
    bench.change(handle, 1)
    bench.clock.advance(1.1)
    assert [h.reconsume_times for h in bench.receive()] == [1]


def test_undelivered_message_keeps_reconsume_times(bench: PopBench) -> None:
    bench.send(b"a")
    for number in range(5):
        (handle,) = bench.receive(invisible=10, maximum=1)
        assert handle.reconsume_times == 0, f"after {number} deliveries that nobody saw"
        assert bench.change(handle, 0.001, undelivered=True) is not None
        bench.clock.advance(0.01)
        bench.pop.sweep()
    bench.kill()
    for times in (0, 1):
        (handle,) = bench.receive(invisible=10, maximum=1)
        assert handle.reconsume_times == times
        if times:
            bench.change(handle, 0.001, undelivered=True)
            bench.clock.advance(0.01)
            (handle,) = bench.receive(invisible=10, maximum=1)
            assert handle.reconsume_times == 1, "neither is its last try"
        bench.clock.advance(10)
        bench.pop.sweep()
    assert [record.body for record in bench.dead_letters()] == [b"a"]


def test_message_becomes_dead_letter_after_maximum_retries(bench: PopBench) -> None:
    bench.send(b"bad", b"good")
    seen = []
    for _ in range(4):
        for handle in bench.receive(invisible=1, maximum=2):
            seen.append((handle.body, handle.reconsume_times))
            if handle.body == b"good":
                bench.ack(handle)
        bench.clock.advance(1)
        bench.pop.sweep()
    assert seen == [(b"bad", 0), (b"good", 0), (b"bad", 1), (b"bad", 2)]
    (dead,) = bench.dead_letters()
    assert (dead.body, dead.reconsume_times) == (b"bad", 3)
    assert dead.properties["RETRY_TOPIC"] == "t"
    assert dead.properties["RAYMQ_DLQ_REASON"] == "not acknowledged in time, 3 times"
    bench.store.flush()
    bench.pop.sweep()
    assert bench.committed() == 2


def test_dead_letters_are_logged_once_a_second_with_count(bench: PopBench, caplog: pytest.LogCaptureFixture) -> None:
    for count in (3, 1, 1):
        bench.send(*[b"bad"] * count)
        bench.receive(invisible=1, maximum=0)
        bench.clock.advance(1)
        bench.pop.sweep()
        bench.store.flush()
        bench.pop.sweep()
    logged = [record.getMessage() for record in caplog.records if "is a dead letter" in record.getMessage()]
    assert len(bench.dead_letters()) == 5
    assert len(logged) == 3
    assert [" (2 more dead letters)" in each for each in logged] == [False, True, False]
    assert "topic t queue 0 offset 3 " in logged[1]


def test_dead_letters_wait_for_disk_space(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(b"bad", b"next")
    bench.receive(1, invisible=1, maximum=0)
    bench.clock.advance(1)

    def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(bench.pop, "_bury", full)
        bench.pop.sweep()
    assert bodies(bench.receive()) == [b"next"], "the dead one is not delivered"
    bench.pop.sweep()
    assert [record.body for record in bench.dead_letters()] == [b"bad"]


@pytest.mark.parametrize("killed", [True, False])
def test_dead_letter_is_written_once_if_commit_fails(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    bench.send(b"first", b"second")
    bench.receive(invisible=1, maximum=0)
    bench.clock.advance(1)

    def refused(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.consumer_offsets, "commit", refused)
        bench.pop.sweep()
        bench.store.flush()
        bench.pop.sweep()
    assert bench.committed() == 0
    if killed:
        bench.kill()
    bench.pop.sweep()
    assert [record.body for record in bench.dead_letters()] == [b"first", b"second"]
    assert bench.committed() == 2


def test_message_after_reset_becomes_second_dead_letter(bench: PopBench) -> None:
    bench.core.ensure_group("g")
    bench.send(b"bad")
    for _ in range(2):
        bench.receive(invisible=1, maximum=0)
        bench.clock.advance(1)
        bench.pop.sweep()
        bench.core.reset_offset("g", "t", 0, 0)
    assert [record.body for record in bench.dead_letters()] == [b"bad", b"bad"]


def test_filtered_messages_are_committed(bench: PopBench) -> None:
    for tag in ("x", "y", "x", "y"):
        bench.send(tag.encode(), tags=tag)
    found = bench.receive(wanted=parse_filter("TAG", "y"))
    assert [(h.body, h.offset) for h in found] == [(b"y", 1), (b"y", 3)]
    bench.ack(found[0])
    assert bench.committed() == 3
    bench.ack(found[1])
    assert bench.committed() == 4
    bench.send(b"x", tags="x")
    assert bench.receive(wanted=parse_filter("TAG", "y")) == []
    assert bench.committed() == 5


def test_new_group_gets_all_of_a_young_queue(bench: PopBench) -> None:
    bench.send(b"old")
    assert bodies(bench.receive(from_end=True, group="late")) == [b"old"]


def test_new_group_starts_at_chosen_position(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_service, "_MEMORY_BYTES", 0)  # no message counts as in memory
    bench.send(b"old")
    assert bench.receive(from_end=True, group="late") == []
    assert bench.committed(group="late") == 1
    bench.send(b"new")
    assert bodies(bench.receive(from_end=True, group="late")) == [b"new"]
    assert bodies(bench.receive()) == [b"old", b"new"]


def test_retry_topic_is_popped_from_beginning(bench: PopBench) -> None:
    bench.store.topic_configs.put(TopicConfig("%RETRY%g", 1, 1))
    append(bench.store, make_record(b"failed", topic="%RETRY%g"))
    assert bodies(bench.receive(from_end=True, topic="%RETRY%g")) == [b"failed"]


def test_pop_limits_messages_and_bytes(bench: PopBench) -> None:
    bench.send(*(b"%d" % n + bytes(300) for n in range(10)))
    assert len(bench.receive(3)) == 3
    assert len(bench.receive(max_bytes=900)) == 2
    assert len(bench.receive(max_bytes=1)) == 1, "at least one"
    bench.clock.advance(31)
    assert [h.offset for h in bench.receive(max_bytes=900)] == [0, 1]
    assert [h.offset for h in bench.receive(100)] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_message_over_pop_size_comes_with_next_pop(bench: PopBench) -> None:
    """Guard against a negative remaining size, whose empty read marked the message as done."""
    long = b"long" * 500
    bench.send(long, b"done", b"a", b"b")
    handles = bench.receive(invisible=10)
    bench.ack(handles[1])
    bench.clock.advance(10)
    (first,) = bench.receive(max_bytes=500)
    assert first.body == long
    assert bodies(bench.receive(max_bytes=500)) == [b"a", b"b"]
    bench.ack(first)
    assert bench.committed() == 2


def test_pop_covers_all_queues(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, queues=3)
    for queue_id in range(3):
        bench.send(b"%d" % queue_id, queue_id=queue_id)
    assert {h.queue_id for h in bench.receive(2)} < {0, 1, 2}
    assert len(bench.receive(2)) == 1
    bench.close()


def test_ordered_pop_waits_for_unacknowledged_messages(bench: PopBench) -> None:
    bench.send(*(b"%d" % n for n in range(5)))
    first = bench.receive(2, ordered=True, invisible=10)
    assert bodies(first) == [b"0", b"1"]
    assert bench.receive(2, ordered=True) == []
    bench.ack(first[0])
    assert bench.receive(2, ordered=True) == []
    assert bench.ready == []
    bench.ack(first[1])
    assert bench.ready == [("g", "t", 0)]
    second = bench.receive(2, ordered=True, invisible=10)
    assert bodies(second) == [b"2", b"3"]
    bench.clock.advance(10)
    third = bench.receive(3, ordered=True)
    assert [(h.body, h.reconsume_times) for h in third] == [(b"2", 1), (b"3", 1), (b"4", 0)]


def test_ordered_pop_waits_for_renewed_message(bench: PopBench) -> None:
    bench.send(b"0", b"1", b"2")
    first = bench.receive(2, ordered=True, invisible=10)
    renewed = bench.change(first[0], 60)
    assert renewed is not None
    bench.clock.advance(20)
    assert bench.receive(ordered=True) == []
    bench.ack(renewed)
    assert bodies(bench.receive(ordered=True)) == [b"1", b"2"]


def test_repeated_attempt_gets_same_messages(bench: PopBench) -> None:
    bench.send(b"0", b"1", b"2")
    bench.receive(2, ordered=True, attempt_id="one")
    assert bench.receive(2, ordered=True, attempt_id="two") == []
    again = bench.receive(2, ordered=True, attempt_id="one")
    assert bodies(again) == [b"0", b"1"]
    assert bench.ack(*again) == [True, True]


def test_repeated_attempt_keeps_reconsume_times(bench: PopBench) -> None:
    """Cover fault 14.16: reconsume times stay if the first answer was lost or expired."""
    bench.send(b"0", b"1")

    def times(attempt_id: str | None) -> list[int]:
        return [each.reconsume_times for each in bench.receive(2, ordered=True, invisible=10, attempt_id=attempt_id)]

    assert times("one") == times("one") == [0, 0]
    bench.clock.advance(10)
    assert times("one") == [0, 0]
    bench.clock.advance(10)
    assert times("two") == times("two") == [1, 1]
    bench.clock.advance(10)
    assert times(None) == [2, 2]
    bench.clock.advance(10)
    assert times(None) == [3, 3], "who tells no attempt tries anew each time"


def test_reset_invalidates_handles(bench: PopBench) -> None:
    bench.send(b"a", b"b")
    before = bench.receive()
    bench.store.consumer_offsets.commit("g", "t", 0, 0)
    bench.pop.forget("g", "t", 0)
    assert bench.ready == [("g", "t", 0)]
    after = bench.receive()
    assert [(h.body, h.reconsume_times) for h in after] == [(b"a", 0), (b"b", 0)]
    assert bench.ack(*before) == [False, False]
    assert bench.ack(*after) == [True, True]


@pytest.mark.parametrize(("offset", "left"), [(0, []), (2, [b"c"]), (4, [])])
def test_external_offset_commit_ends_deliveries(bench: PopBench, offset: int, left: list[bytes]) -> None:
    bench.send(b"a", b"b", b"c", b"d")
    a, b, c, _ = [*bench.receive(3), Handle(0, 3, 0, b"d", 0)]
    bench.ack(a)
    bench.store.consumer_offsets.commit("g", "t", 0, offset)
    assert [h.body for h in (b, c) if bench.ack(h) == [True]] == left
    expected = {0: [b"a", b"b", b"c", b"d"], 2: [b"d"], 4: []}[offset]
    assert bodies(bench.receive()) == expected


def test_expired_messages_are_committed(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(*(b"%03d" % n for n in range(100)))
    bench.receive(50, invisible=1)
    bench.clock.advance(1)
    bench.store.flush()
    bench.clock.advance(80 * 3600)
    assert bench.store.delete_expired(asked=True).log_files
    low = bench.store.min_offset("t", 0)
    assert low > 0
    assert bench.receive(100)[0].offset == low
    assert bench.committed() == low


def test_damaged_message_does_not_hide_others(bench: PopBench, tmp_path: Path) -> None:
    bench.send(b"first" * 3)
    bench.send(b"second" * 3)
    handles = bench.receive(1, invisible=1)
    position = int(bench.store.entries("t", 0, 0, 1)[0][0])
    flip_byte(log_file(tmp_path), position + 88)  # a byte of its body
    bench.clock.advance(1)
    assert [h.offset for h in bench.receive(10, invisible=1)] == [1]
    assert bench.committed() == 1
    assert not any(bench.ack(*handles))
    assert bench.receive() == []
    assert bench.core.set_aside.counts["pop"] == 1


def test_damaged_new_messages_do_not_stop_queue(bench: PopBench, tmp_path: Path) -> None:
    """Cover fault 14.5 for pop: skip damaged messages, and note them once for each group."""
    for number in range(4):
        bench.send(b"message %d" % number)
    for number in (0, 2):
        flip_byte(log_file(tmp_path), int(bench.store.entries("t", 0, number, 1)[0][0]) + 88)
    for group in ("g", "h"):
        found = [*bench.receive(1, group=group), *bench.receive(1, group=group), *bench.receive(1, group=group)]
        assert [handle.offset for handle in found] == [1, 3]
        assert all(bench.ack(*found, group=group))
    assert [(note.owner, note.offset) for note in bench.core.set_aside.notes()] == [
        ("g", 0),
        ("g", 2),
        ("h", 0),
        ("h", 2),
    ]
    bench.kill()
    assert len(bench.core.set_aside.notes()) == 4
    assert bench.receive() == []


def test_uncopyable_message_does_not_stop_dead_letters(bench: PopBench) -> None:
    """Cover fault 13.6: one uncopyable message stopped the sweep of all queues."""
    forged = b"p\x01a\x01b\x02"  # not a valid encoding of properties
    append(bench.store, encode("t", 0, b"forged", forged, born_timestamp_ms=1, born_host=b"\x7f\0\0\1" * 2))
    bench.send(b"sound")
    bench.receive(10, invisible=1, maximum=0, max_bytes=1 << 22)
    bench.receive(10, invisible=1, maximum=0, group="h", max_bytes=1 << 22)
    bench.clock.advance(2)
    bench.pop.sweep()
    assert [record.body for record in bench.dead_letters()] == [b"sound"]
    with bench.store.read("%DLQ%h", 0, 0, 10) as lease:
        assert [record.body for record in lease.messages()] == [b"sound"]
    assert bench.core.set_aside.counts["deadLetter"] == 2


@pytest.mark.parametrize("error", [StoreFull("no room"), OverflowError("Python int too large to convert")], ids=repr)
def test_failed_delivery_write_keeps_messages_ready(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Cover fault 13.7: an unexpected exception kept ready messages taken until a restart."""
    bench.send(b"a", b"b")
    bench.receive(2, invisible=1)
    bench.clock.advance(2)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(bench.store.in_flight, "deliver", fail)
        with pytest.raises(type(error)):
            bench.receive()
        check_invariants(bench.pop)
    assert bodies(bench.receive()) == [b"a", b"b"]


def test_message_is_redelivered_after_failed_ack(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a committed offset behind which the message was lost for the group."""
    bench.send(b"a", b"b")
    handles = bench.receive(invisible=10)
    with monkeypatch.context() as patched:
        patched.setattr(InFlightTable, "acknowledge", lambda *_: (_ for _ in ()).throw(StoreFull("no room")))
        with pytest.raises(StoreFull):
            bench.ack(handles[0])
    assert bench.committed() == 0
    bench.clock.advance(10)
    assert bodies(bench.receive()) == [b"a", b"b"]


@pytest.mark.parametrize("times", [-(2**31), -5, 2**31 - 1])
def test_forged_reconsume_times_are_counted_on(bench: PopBench, times: int) -> None:
    """Cover fault 13.5."""
    append(bench.store, make_record(b"a", topic="t", reconsume_times=times))
    for _ in range(3):
        bench.pop.receive(PopRequest("g", "t", range(1), 1, 1 << 20, 1_000, 2**31 - 1))
        bench.clock.advance(2)
        bench.pop.sweep()
        check_invariants(bench.pop)
    assert len(bench.dead_letters()) == 0


def test_group_at_in_flight_limit_gets_no_messages(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_service, "MAX_IN_FLIGHT", 3)
    bench.send(*(b"%d" % n for n in range(5)))
    handles = bench.receive(3)
    assert bench.receive() == []
    bench.ack(handles[2])
    assert bodies(bench.receive()) == [b"3", b"4"]


def test_has_messages_sees_new_and_expired_deliveries(bench: PopBench) -> None:
    def has(*, ordered: bool = False) -> bool:
        return bench.pop.has_messages("g", "t", range(1), ordered=ordered)

    assert not has()
    bench.send(b"a", b"b")
    assert has()
    bench.receive(1, invisible=1)
    assert has()
    assert not has(ordered=True)
    bench.receive(1, invisible=5)
    assert not has()
    bench.clock.advance(1)
    assert has()
    assert bench.ready == [("g", "t", 0)], "others who wait learn it as well"


def test_topic_delete_invalidates_handles(bench: PopBench) -> None:
    bench.send(b"a")
    handles = bench.receive()
    bench.core.topics.delete("t")
    assert bench.ack(*handles) == [False]
