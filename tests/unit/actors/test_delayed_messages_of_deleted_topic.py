"""Test that delayed messages of a deleted topic never reach a new topic of the same name."""

from __future__ import annotations

import pytest

from raymq.client import Message
from tests.unit.actors.bench import Bench

WAYS = ("a level", "a time")


def send_delayed(bench: Bench, body: bytes, way: str) -> None:
    when = {"delay_level": 3} if way == "a level" else {"deliver_at": bench.clock.now + 10}
    bench.append(Message("t", body, **when), delayed=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_new_topic_gets_only_its_own_delayed_messages(bench: Bench, way: str, crash: bool) -> None:
    send_delayed(bench, b"of the deleted one", way)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 2)
    send_delayed(bench, b"of the new one", way)
    if crash:
        bench.crash()
    bench.clock.advance(11)
    for _ in range(3):
        bench.core.deliver_due()
    assert bench.bodies("t") == [b"of the new one"]
    [note] = bench.core.set_aside.notes()
    assert "does not exist any more" in note.reason


@pytest.mark.parametrize("way", WAYS)
def test_relocated_message_of_deleted_topic_is_dropped(bench: Bench, way: str) -> None:
    """Relocate the message to a position after the deletion of its topic."""
    send_delayed(bench, b"of the deleted one", way)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 2)
    send_delayed(bench, b"of the new one", way)
    end = bench.store.max_physical_offset
    bench.store.flush()
    for _ in range(20):
        bench.core.rescue.relocate_before(end)
    bench.clock.advance(11)
    for _ in range(3):
        bench.core.deliver_due()
    assert bench.bodies("t") == [b"of the new one"]


def test_retry_survives_recreation_of_retry_topic(bench: Bench) -> None:
    """Keep a failed message when its retry topic was deleted and recreated."""
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
