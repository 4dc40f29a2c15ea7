"""Pop over a real store, with a clock of ours: lending, acknowledging, renewing, dying, surviving kills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.broker.core.pop import pop_service
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.filter.tag_expression import parse_filter
from raymq.storage.errors import StoreFull
from raymq.storage.records.record import encode
from raymq.storage.tables.in_flight_messages import InFlightTable
from raymq.storage.tables.topic_config import TopicConfig
from tests.store_records import append, flip_byte, log_file, make_record
from tests.unit.actors.pop_bench import Handle, PopBench, bodies

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def test_a_message_is_with_one_consumer_at_a_time(bench: PopBench) -> None:
    bench.send(b"a", b"b", b"c")
    assert bodies(bench.receive(2)) == [b"a", b"b"]
    assert bodies(bench.receive(2)) == [b"c"]
    assert bench.receive() == []
    assert bodies(bench.receive(group="other")) == [b"a", b"b", b"c"]


def test_what_is_acknowledged_never_comes_again(bench: PopBench) -> None:
    bench.send(b"a", b"b")
    assert bench.ack(*bench.receive()) == [True, True]
    bench.clock.advance(100)
    assert bench.receive() == []
    assert bench.committed() == 2


def test_what_is_not_acknowledged_comes_again_when_its_time_is_over(bench: PopBench) -> None:
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


def test_the_handle_of_a_message_whose_time_is_over_is_stale(bench: PopBench) -> None:
    bench.send(b"a")
    (handle,) = bench.receive(invisible=1)
    bench.clock.advance(1)
    assert bench.ack(handle) == [False]
    assert bench.change(handle, 10) is None
    assert bodies(bench.receive()) == [b"a"]


def test_the_offset_moves_over_what_is_done_from_the_front_on(bench: PopBench) -> None:
    bench.send(b"a", b"b", b"c", b"d")
    a, b, c, d = bench.receive()
    seen = []
    for handle in (c, a, d, b):
        bench.ack(handle)
        seen.append(bench.committed())
    assert seen == [0, 1, 1, 4]


def test_a_renewed_handle_replaces_the_former(bench: PopBench) -> None:
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


def test_renewing_may_shorten(bench: PopBench) -> None:
    bench.send(b"a")
    (handle,) = bench.receive(invisible=3600)
    bench.change(handle, 1)
    bench.clock.advance(1.1)
    assert [h.reconsume_times for h in bench.receive()] == [1]


def test_what_is_given_back_unseen_has_not_been_tried(bench: PopBench) -> None:
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


def test_after_the_maximum_a_message_is_a_dead_letter(bench: PopBench) -> None:
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


def test_dead_letters_are_logged_once_a_second_with_the_count_of_the_others(
    bench: PopBench, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_dead_letters_wait_for_room(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_death_whose_end_was_not_written_down_is_buried_once(
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


def test_what_dies_again_after_a_reset_is_another_dead_letter(bench: PopBench) -> None:
    bench.core.ensure_group("g")
    bench.send(b"bad")
    for _ in range(2):
        bench.receive(invisible=1, maximum=0)
        bench.clock.advance(1)
        bench.pop.sweep()
        bench.core.reset_offset("g", "t", 0, 0)
    assert [record.body for record in bench.dead_letters()] == [b"bad", b"bad"]


def test_unwanted_tags_are_passed_over_for_good(bench: PopBench) -> None:
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


def test_a_new_group_begins_where_it_wants(bench: PopBench) -> None:
    bench.send(b"old")
    assert bench.receive(from_end=True, group="late") == []
    assert bench.committed(group="late") == 1
    bench.send(b"new")
    assert bodies(bench.receive(from_end=True, group="late")) == [b"new"]
    assert bodies(bench.receive()) == [b"old", b"new"]


def test_what_is_retried_is_popped_from_its_beginning(bench: PopBench) -> None:
    bench.store.topic_configs.put(TopicConfig("%RETRY%g", 1, 1))
    append(bench.store, make_record(b"failed", topic="%RETRY%g"))
    assert bodies(bench.receive(from_end=True, topic="%RETRY%g")) == [b"failed"]


def test_limits_of_one_pop(bench: PopBench) -> None:
    bench.send(*(b"%d" % n + bytes(300) for n in range(10)))
    assert len(bench.receive(3)) == 3
    assert len(bench.receive(max_bytes=900)) == 2
    assert len(bench.receive(max_bytes=1)) == 1, "at least one"
    bench.clock.advance(31)
    assert [h.offset for h in bench.receive(max_bytes=900)] == [0, 1]
    assert [h.offset for h in bench.receive(100)] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_finds_no_space_behind_a_long_message_comes_with_the_next_pop(bench: PopBench) -> None:
    """It counted as gone, and so as done: more was used than there was, and a read of less than nothing is empty."""
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


def test_messages_of_all_queues(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, queues=3)
    for queue_id in range(3):
        bench.send(b"%d" % queue_id, queue_id=queue_id)
    assert {h.queue_id for h in bench.receive(2)} < {0, 1, 2}
    assert len(bench.receive(2)) == 1
    bench.close()


def test_in_order_a_queue_waits_for_what_is_out(bench: PopBench) -> None:
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


def test_in_order_a_part_that_ran_out_waits_for_the_other(bench: PopBench) -> None:
    bench.send(b"0", b"1", b"2")
    first = bench.receive(2, ordered=True, invisible=10)
    renewed = bench.change(first[0], 60)
    assert renewed is not None
    bench.clock.advance(20)
    assert bench.receive(ordered=True) == []
    bench.ack(renewed)
    assert bodies(bench.receive(ordered=True)) == [b"1", b"2"]


def test_an_attempt_that_is_repeated_gets_the_same(bench: PopBench) -> None:
    bench.send(b"0", b"1", b"2")
    bench.receive(2, ordered=True, attempt_id="one")
    assert bench.receive(2, ordered=True, attempt_id="two") == []
    again = bench.receive(2, ordered=True, attempt_id="one")
    assert bodies(again) == [b"0", b"1"]
    assert bench.ack(*again) == [True, True]


def test_an_attempt_that_is_repeated_is_not_another_try(bench: PopBench) -> None:
    """Fault 14.16: the reconsume times stay, whether the first answer got lost or its time ran out."""
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


def test_a_reset_makes_handles_void(bench: PopBench) -> None:
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
def test_an_offset_that_others_move_ends_deliveries(bench: PopBench, offset: int, left: list[bytes]) -> None:
    bench.send(b"a", b"b", b"c", b"d")
    a, b, c, _ = [*bench.receive(3), Handle(0, 3, 0, b"d", 0)]
    bench.ack(a)
    bench.store.consumer_offsets.commit("g", "t", 0, offset)
    assert [h.body for h in (b, c) if bench.ack(h) == [True]] == left
    expected = {0: [b"a", b"b", b"c", b"d"], 2: [b"d"], 4: []}[offset]
    assert bodies(bench.receive()) == expected


def test_messages_that_expired_are_done(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_damaged_message_hides_no_other(bench: PopBench, tmp_path: Path) -> None:
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


def test_damaged_new_messages_do_not_stop_their_queue(bench: PopBench, tmp_path: Path) -> None:
    """Fault 14.5, for pop: told, counted, passed over; each group is told of it once."""
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


def test_what_can_be_no_dead_letter_holds_up_no_other_queue(bench: PopBench) -> None:
    """Fault 13.6: the sweep stopped for all queues behind one message that could not be copied."""
    told = b"p\x01a\x01b\x02"  # no property can be written so
    append(bench.store, encode("t", 0, b"forged", told, born_timestamp_ms=1, born_host=b"\x7f\0\0\1" * 2))
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
def test_a_pop_that_cannot_be_written_down_gives_nothing_and_hides_nothing(
    bench: PopBench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Fault 13.7: after an exception of an unexpected kind what was ready stayed taken until the restart."""
    bench.send(b"a", b"b")
    bench.receive(2, invisible=1)
    bench.clock.advance(2)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(bench.store.in_flight, "deliver", fail)
        with pytest.raises(type(error)):
            bench.receive()
        bench.pop.validate()
    assert bodies(bench.receive()) == [b"a", b"b"]


def test_what_could_not_be_acknowledged_comes_again(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's offset had passed it by then, so that it was done for the broker alone."""
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
def test_reconsume_times_that_a_record_made_up_are_counted_on(bench: PopBench, times: int) -> None:
    """Fault 13.5."""
    append(bench.store, make_record(b"a", topic="t", reconsume_times=times))
    for _ in range(3):
        bench.pop.receive(PopRequest("g", "t", range(1), 1, 1 << 20, 1_000, 2**31 - 1))
        bench.clock.advance(2)
        bench.pop.sweep()
        bench.pop.validate()
    assert len(bench.dead_letters()) == 0


def test_a_group_with_too_much_out_gets_no_more(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_service, "MAX_IN_FLIGHT", 3)
    bench.send(*(b"%d" % n for n in range(5)))
    handles = bench.receive(3)
    assert bench.receive() == []
    bench.ack(handles[2])
    assert bodies(bench.receive()) == [b"3", b"4"]


def test_whether_there_are_messages(bench: PopBench) -> None:
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


def test_deleting_the_topic_ends_all(bench: PopBench) -> None:
    bench.send(b"a")
    handles = bench.receive()
    bench.core.topics.delete("t")
    assert bench.ack(*handles) == [False]
