"""Test that in-flight messages survive kills and power losses, and acknowledged ones stay done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.storage.journal import state_journal
from raymq.storage.tables.in_flight_messages import InFlightMessage
from tests.state_journals import wait_for_compaction
from tests.unit.actors.pop_bench import PopBench, bodies

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def test_kill_redelivers_only_unacknowledged_messages(bench: PopBench) -> None:
    bench.send(*(b"%d" % n for n in range(30)))
    handles = bench.receive(30, invisible=10)
    renewed = bench.change(handles[0], 60)
    bench.ack(*handles[1::2])
    bench.kill()
    assert bench.receive() == []
    bench.clock.advance(9.9)
    assert bench.ack(handles[2]) == [True], "handles survive"
    bench.kill()
    bench.clock.advance(0.1)
    assert [(h.offset, h.reconsume_times) for h in bench.receive()] == [(n, 1) for n in range(4, 30, 2)]
    assert bench.ack(handles[0]) == [False]
    assert renewed is not None
    assert bench.ack(renewed) == [True]


def test_kill_between_offset_commit_and_in_flight_table(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(b"a", b"b", b"c")
    handles = bench.receive(2)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.in_flight, "acknowledge", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.ack(handles[0])
    bench.kill()
    assert bench.committed() == 1
    assert bench.ack(*handles) == [False, True]
    assert bodies(bench.receive()) == [b"c"]


def test_state_files_stay_bounded(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 4096)
    bench.kill()
    bench.send(b"stuck")
    bench.receive(1, invisible=3600)
    state = bench.directory / "raymq" / "state"
    bench.store._parts.journal.compact()
    one = max(state.glob("snapshot-*")).stat().st_size
    largest = 0
    for _ in range(200):
        bench.send(*(b"x" for _ in range(5)))
        bench.ack(*bench.receive())
        wait_for_compaction(bench.store)  # late on a busy machine
        largest = max(largest, sum(each.stat().st_size for each in state.iterdir()))
    # Two snapshots, and the journals behind the older one of them.
    assert largest < 2 * one + 2 * 9000
    bench.kill()
    bench.store._parts.journal.compact()
    assert max(state.glob("snapshot-*")).stat().st_size < one + 200
    bench.clock.advance(3600)
    assert bodies(bench.receive()) == [b"stuck"]


def test_power_loss_of_messages_keeps_others_in_flight(bench: PopBench) -> None:
    bench.send(b"a", b"b")
    held = bench.receive()
    lost = {offset: InFlightMessage(1, 2, 0, 16) for offset in (2, 7)}
    bench.store.in_flight.deliver(("g", "t", 0), 9, lost)  # the journal is ahead of the log
    bench.kill()
    assert bench.ack(held[0]) == [True]
    bench.send(b"new", b"newer")
    assert bodies(bench.receive()) == [b"new", b"newer"]
    bench.clock.advance(31)
    assert bodies(bench.receive()) == [b"b", b"new", b"newer"]


class Killed(BaseException):
    """Stand in for a kill of the process at a failpoint."""


def test_kill_at_any_write_keeps_acknowledgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = 0

    def reached(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    monkeypatch.setattr(state_journal, "failpoint", reached)
    for step in range(1, 10_000):
        bench = PopBench(tmp_path / str(step))
        bench.send(*(b"%d" % n for n in range(8)))
        left = step
        given: list[int] = []
        requested: list[int] = []
        done: list[int] = []
        try:
            for count in (3, 5):
                handles = bench.receive(count, invisible=10)
                given += [handle.offset for handle in handles]
                for handle in (handles[1], handles[0], *handles[3:]):
                    requested.append(handle.offset)
                    assert bench.ack(handle) == [True]
                    done.append(handle.offset)
        except Killed:
            pass
        survived, left = left > 0, 0
        bench.kill()
        at_once = [handle.offset for handle in bench.receive(invisible=10)]
        assert not set(at_once) & set(given), f"step {step}: still invisible"
        bench.clock.advance(10)
        again = [handle.offset for handle in bench.receive()]
        # The acknowledgement that the kill interrupted may be stored or not.
        assert set(given) - set(requested) <= set(again) <= set(range(8)) - set(done), f"step {step}"
        bench.close()
        if survived:
            break
    assert step > 20
