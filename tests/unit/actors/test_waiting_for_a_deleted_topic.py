"""What waits for a topic that is deleted is not that of another one that gets its name."""

from __future__ import annotations

import pytest

from raymq.client import Message
from tests.unit.actors.bench import Bench

WAYS = ("a level", "a time")


def wait(bench: Bench, body: bytes, way: str) -> None:
    when = {"delay_level": 3} if way == "a level" else {"deliver_at": bench.clock.now + 10}
    bench.append(Message("t", body, **when), delayed=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_only_what_came_for_it_reaches_a_topic(bench: Bench, way: str, crash: bool) -> None:
    wait(bench, b"of the deleted one", way)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 2)
    wait(bench, b"of the new one", way)
    if crash:
        bench.crash()
    bench.clock.advance(11)
    for _ in range(3):
        bench.core.deliver_due()
    assert bench.bodies("t") == [b"of the new one"]
    [note] = bench.core.set_aside.notes()
    assert "gone" in note.reason


@pytest.mark.parametrize("way", WAYS)
def test_nor_when_it_is_stored_anew_while_it_waits(bench: Bench, way: str) -> None:
    """Its copy lies behind the place at which the topic was deleted."""
    wait(bench, b"of the deleted one", way)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 2)
    wait(bench, b"of the new one", way)
    end = bench.store.max_physical_offset
    bench.store.flush()
    for _ in range(20):
        bench.core.rescue.relocate_before(end)
    bench.clock.advance(11)
    for _ in range(3):
        bench.core.deliver_due()
    assert bench.bodies("t") == [b"of the new one"]


def test_what_a_group_failed_on_stays_its_own(bench: Bench) -> None:
    """Also where its retry topic was deleted, and made again."""
    core = bench.core
    core.ensure_group("g")
    place = int(bench.append(Message("t", b"x")).physical_offsets[0])
    core.redelivery.send_back("g", place, 0)
    core.topics.delete("%RETRY%g")
    core.ensure_group("g")
    bench.clock.advance(60)
    for _ in range(3):
        core.deliver_due()
    assert bench.bodies("%RETRY%g") == [b"x"]
