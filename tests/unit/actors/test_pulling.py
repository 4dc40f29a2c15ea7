"""Test a pull's four statuses with their offsets, commits and resets, over a real store."""

from __future__ import annotations

import pytest

from raymq.actors.broker.core.groups import group_offsets as offset_rules
from raymq.actors.broker.core.groups.group_offsets import GroupOffsets
from raymq.actors.broker.core.reading.pull_reader import PullResult, PullStatus, pull
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    MessageNotFound,
    OffsetReset,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
)
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.client import Message
from raymq.storage.tables.topic_config import TopicConfig
from tests.unit.actors.bench import Bench
from tests.unit.actors.filters import parse_filter

FOUND, NEW, MATCHED, MOVED = (
    PullStatus.FOUND,
    PullStatus.NOTHING_NEW,
    PullStatus.NOTHING_MATCHED,
    PullStatus.OFFSET_MOVED,
)


def pull_from(
    bench: Bench, offset: int, tags: str = "*", queue_id: int = 0, messages: int = 32, size: int = 1 << 20
) -> PullResult:
    wanted = FetchSpec("t", queue_id, offset, parse_filter("TAG", tags).tags_codes)
    return pull(bench.core, "g", wanted, messages, size)


def bodies(found: PullResult) -> list[bytes]:
    assert found.lease is not None
    with found.lease:
        return [message.body for message in found.lease.messages()]


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [(-1, MOVED, 0), (0, FOUND, 10), (3, FOUND, 10), (10, NEW, 10), (11, MOVED, 10), (1_000, MOVED, 10)],
)
def test_pull_status_by_offset(bench: Bench, offset: int, status: PullStatus, next_offset: int) -> None:
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    found = pull_from(bench, offset)
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (status, next_offset, 0, 10)
    assert (found.lease is not None) == (status is FOUND)


@pytest.mark.parametrize(("offset", "status"), [(0, NEW), (1, MOVED), (-1, MOVED)])
def test_pull_status_of_empty_queue(bench: Bench, offset: int, status: PullStatus) -> None:
    found = pull_from(bench, offset, queue_id=1)
    assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (status, 0, 0, 0)


@pytest.mark.parametrize(
    ("tags", "offset", "status", "next_offset", "expected"),
    [
        ("a", 0, FOUND, 6, [b"0", b"2", b"4"]),
        ("a || b", 1, FOUND, 6, [b"1", b"2", b"3", b"4", b"5"]),
        ("z", 0, MATCHED, 6, None),
        ("a", 5, MATCHED, 6, None),
        ("a", 6, NEW, 6, None),
    ],
)
def test_pull_filters_by_tags(
    bench: Bench, tags: str, offset: int, status: PullStatus, next_offset: int, expected: list[bytes] | None
) -> None:
    bench.append(*[Message("t", b"%d" % n, tags="ab"[n % 2]) for n in range(6)])
    found = pull_from(bench, offset, tags)
    assert (found.status, found.next_offset) == (status, next_offset)
    assert expected is None or bodies(found) == expected


@pytest.mark.parametrize(("messages", "size", "count"), [(2, 1 << 20, 2), (32, 1, 1), (32, 2_500, 2), (32, 1 << 20, 5)])
def test_pull_limits_messages_and_bytes(bench: Bench, messages: int, size: int, count: int) -> None:
    bench.append(*[Message("t", bytes(1_000)) for _ in range(5)])
    found = pull_from(bench, 0, messages=messages, size=size)
    assert (len(bodies(found)), found.next_offset) == (count, count)


def test_pull_refuses_unknown_queue_topic_or_permission(bench: Bench) -> None:
    with pytest.raises(QueueNotFound):
        pull_from(bench, 0, queue_id=7)
    with pytest.raises(TopicNotFound):
        pull(bench.core, "g", FetchSpec("nothing", 0, 0), 1, 1)
    bench.store.topic_configs.put(TopicConfig("t", 2, 2, perm=2))
    with pytest.raises(PermissionDenied):
        pull_from(bench, 0)


def test_committed_offset_survives_crash_and_moves_forward(bench: Bench) -> None:
    offsets = bench.core.offsets
    bench.append(*[Message("t", b"x") for _ in range(5)])
    with pytest.raises(GroupNotFound):
        offsets.commit("g", "t", 0, 4)
    bench.core.ensure_group("g")
    offsets.commit("g", "t", 0, 4)
    offsets.commit("g", "t", 0, 2)
    assert offsets.get("g", "t", 0) == 4
    for beyond in (6, -1):
        with pytest.raises(InvalidInput, match=r"0\.\.5"):
            offsets.commit("g", "t", 0, beyond)
    bench.crash()
    assert bench.core.offsets.get("g", "t", 0) == 4
    assert bench.core.offsets.get("g", "t", 1) is None
    assert bench.core.consumed_topics("g") == ["%RETRY%g", "t"]
    bench.core.offsets.commit("g", "t", 0, 2, forward_only=False)
    assert bench.core.offsets.get("g", "t", 0) == 2


def test_initial_offset_is_0_only_in_young_queue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = bench.core.offsets
    bench.append(*[Message("t", bytes(500)) for _ in range(5)])
    assert [offsets.initial_offset("g", "t", queue_id) for queue_id in (0, 1)] == [0, 0]
    monkeypatch.setattr(offset_rules, "YOUNG_BYTES", 1_000)
    with pytest.raises(MessageNotFound):
        offsets.initial_offset("g", "t", 0)
    bench.core.ensure_group("g")
    offsets.commit("g", "t", 0, 3)
    assert offsets.initial_offset("g", "t", 0) == 3


def test_reset_is_reported_once_and_ignores_earlier_commits(bench: Bench) -> None:
    core = bench.core
    core.ensure_group("g")
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    core.offsets.commit("g", "t", 0, 8)
    bench.arrivals.clear()
    core.reset_offset("g", "t", 0, 3)
    assert bench.arrivals == [("t", 0)], "who is parked there is woken"
    assert not core.offsets.commit("g", "t", 0, 9)
    assert core.offsets.get("g", "t", 0) == 3
    found = pull_from(bench, 9)
    assert (found.status, found.next_offset) == (MOVED, 3)
    assert pull_from(bench, 9).status is FOUND
    assert core.offsets.commit("g", "t", 0, 9)


def test_pending_reset_survives_kill_and_restart(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    bench.core.offsets.commit("g", "t", 0, 8)
    bench.core.reset_offset("g", "t", 0, 3)
    bench.crash()
    assert not bench.core.offsets.commit("g", "t", 0, 9)
    bench.store.close()
    bench.open()
    assert not bench.core.offsets.commit("g", "t", 0, 9)
    assert bench.core.offsets.follow_reset("g", "t", 0, 9) == 3
    assert bench.core.offsets.follow_reset("g", "t", 0, 3) is None
    bench.crash()
    assert bench.core.offsets.follow_reset("g", "t", 0, 9) is None
    assert bench.core.offsets.commit("g", "t", 0, 9)


def write_ten_messages(bench: Bench) -> GroupOffsets:
    """Store ten messages, and return the group offsets of the broker."""
    bench.core.ensure_group("g")
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    return bench.core.offsets


def test_old_commit_does_not_undo_reset(bench: Bench) -> None:
    offsets = write_ten_messages(bench)
    assert offsets.commit("g", "t", 0, 6, since=0)
    bench.core.reset_offset("g", "t", 0, 3)
    assert offsets.follow_reset("g", "t", 0, 3) is None, "another member took the queue over and is there"
    with pytest.raises(OffsetReset, match="3"):
        offsets.commit("g", "t", 0, 8, since=6)
    assert offsets.get("g", "t", 0) == 3
    assert offsets.commit("g", "t", 0, 8, since=3)
    with pytest.raises(OffsetReset, match="8"):  # late: another member has consumed or skipped up to 8
        offsets.commit("g", "t", 0, 7, since=3)
    assert offsets.get("g", "t", 0) == 8


def test_first_of_two_initial_commits_wins(bench: Bench) -> None:
    offsets = write_ten_messages(bench)
    assert offsets.commit("g", "t", 0, 3, since=-1)
    for offset in (2, 7):
        with pytest.raises(OffsetReset, match="3"):
            offsets.commit("g", "t", 0, offset, since=-1)
    assert offsets.get("g", "t", 0) == 3


def test_commit_behind_forward_reset_raises_offset_reset(bench: Bench) -> None:
    """Cover a consumer that has already fetched up to the new offset."""
    offsets = write_ten_messages(bench)
    assert offsets.commit("g", "t", 0, 2, since=0)
    bench.core.reset_offset("g", "t", 0, 10)
    with pytest.raises(OffsetReset, match="10"):
        offsets.commit("g", "t", 0, 4, since=2)
    assert not offsets.commit("g", "t", 0, 4), "who does not say `since` would not understand"
    assert offsets.follow_reset("g", "t", 0, 10) is None, "it has fetched so far"
    with pytest.raises(OffsetReset, match="10"):
        offsets.commit("g", "t", 0, 5, since=2)
    assert offsets.get("g", "t", 0) == 10


def test_commit_into_recreated_topic_raises_offset_reset(bench: Bench) -> None:
    offsets = write_ten_messages(bench)
    known = bench.store.incarnation("t")
    assert offsets.commit("g", "t", 0, 5, since=0, incarnation=known)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 4)
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    with pytest.raises(OffsetReset, match="0") as caught:
        offsets.commit("g", "t", 0, 7, since=5, incarnation=known)
    assert (caught.value.offset, caught.value.incarnation) == (0, bench.store.incarnation("t"))
    assert offsets.get("g", "t", 0) is None
    assert offsets.commit("g", "t", 0, 7, since=0, incarnation=bench.store.incarnation("t"))


def test_pop_commit_ends_pending_reset(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    bench.core.reset_offset("g", "t", 0, 3)
    bench.store.consumer_offsets.commit("g", "t", 0, 5)
    assert bench.core.offsets.follow_reset("g", "t", 0, 5) is None


def test_pull_at_reset_offset_sees_no_reset(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.append(*[Message("t", b"%d" % n) for n in range(10)])
    bench.core.reset_offset("g", "t", 0, 3)
    assert (pull_from(bench, 3).status, pull_from(bench, 9).status) == (FOUND, FOUND)


@pytest.mark.parametrize(("asked", "offset"), [(-5, 0), (4, 4), (99, 10)])
def test_reset_stays_within_queue(bench: Bench, asked: int, offset: int) -> None:
    bench.core.ensure_group("g")
    bench.append(*[Message("t", b"x") for _ in range(10)])
    bench.core.reset_offset("g", "t", 0, asked)
    assert bench.core.offsets.get("g", "t", 0) == offset


def test_topic_delete_drops_pending_resets(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.append(Message("t", b"x"))
    bench.core.reset_offset("g", "t", 0, 1)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 1)
    assert pull_from(bench, 0).status is NEW
