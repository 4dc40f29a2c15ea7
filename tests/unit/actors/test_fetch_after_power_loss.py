"""Test fetches by readers from before a power loss: they learn what changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.broker.core.reading.fetch_session import FetchSession
from raymq.actors.broker.core.reading.pull_reader import PullStatus, pull
from raymq.actors.errors import OffsetReset
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.client import Message
from tests.fake_machine import Machine
from tests.unit.actors.bench import Bench

#: The epoch that a reader names: from before the loss, from after it, unknown here, none yet, or never one.
OLD, NEW, UNKNOWN, NOT_YET, NEVER = range(5)


@pytest.fixture
def epochs() -> list[int]:
    """Return a list for the epochs before and after the loss."""
    return []


def lose(bench: Bench, monkeypatch: pytest.MonkeyPatch, committed: int) -> int:
    """Lose power after queue 0 of "t" was read to 8; return the old epoch.

    5 of these messages are left, and behind them are 10 other messages.
    """
    machine = Machine(monkeypatch)
    bench.append(*(Message("t", b"%d" % number) for number in range(5)))
    kept = bench.store.max_physical_offset
    bench.append(*(Message("t", b"%d" % number) for number in range(5, 8)))
    bench.core.ensure_group("g")
    bench.core.offsets.commit("g", "t", 0, committed)
    before = bench.store.epoch
    bench.store._flusher.stop()
    bench.store._abandon()
    machine.lose_power(bench.directory, kept)
    bench.open()
    bench.append(*(Message("t", b"new") for _ in range(10)))
    return before


@pytest.fixture
def lost(bench: Bench, epochs: list[int], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a broker after `lose`, whose group "g" had done 3 messages."""
    epochs.append(lose(bench, monkeypatch, committed=3))
    epochs.append(bench.store.epoch)
    return bench


def fetch_offsets(
    bench: Bench, offset: int, epoch: int | None, group: str | None = None
) -> tuple[int | None, list[int]]:
    """Return where the reader is sent, if it is, and the fetched offsets."""
    fetch = FetchSession(bench.core, [FetchSpec("t", 0, offset, epoch=epoch)], 100, 1 << 20, group)
    (part,) = fetch.read_available() or [None]
    assert fetch.is_stale is (epoch not in (None, bench.store.epoch))
    if part is None:
        return None, []
    return (part.error.offset if isinstance(part.error, OffsetReset) else None), part.offsets.tolist()


@pytest.mark.parametrize(
    ("offset", "said", "sent_to", "first"),
    [
        (8, OLD, 5, None),  # it has read 5, 6 and 7, which are other messages now
        (12, OLD, 5, None),
        (5, OLD, None, 5),
        (3, OLD, None, 3),
        (8, NEW, None, 8),  # it has read them in this epoch
        (8, UNKNOWN, 0, None),
        (8, NOT_YET, None, 8),  # it does not know the epoch of its reads
        (8, NEVER, None, 8),
    ],
)
def test_reader_of_lost_messages_is_sent_back(
    lost: Bench, epochs: list[int], offset: int, said: int, sent_to: int | None, first: int | None
) -> None:
    target, offsets = fetch_offsets(lost, offset, (*epochs, 7, 0, None)[said])
    assert target == sent_to
    assert offsets[:1] == ([] if first is None else [first])


@pytest.mark.parametrize("said", [OLD, UNKNOWN])
@pytest.mark.parametrize(("committed", "sent_to"), [(None, 3), (5, 5), (14, 14)])
def test_stale_member_moves_to_group_offset(
    lost: Bench, epochs: list[int], committed: int | None, sent_to: int, said: int
) -> None:
    """Also cover a member that was cut off long while others have read on."""
    if committed is not None:
        assert lost.core.offsets.commit("g", "t", 0, committed, since=3, epoch=epochs[NEW])
    for _ in range(2):  # the answer may be lost, so that the reader asks again
        assert fetch_offsets(lost, 8, (*epochs, 7)[said], "g") == (sent_to, [])
    assert lost.core.offsets.get("g", "t", 0) == sent_to
    target, offsets = fetch_offsets(lost, sent_to, epochs[NEW], "g")
    assert (target, offsets[:1], offsets[-1:]) == (None, [sent_to], [14])
    assert lost.core.offsets.commit("g", "t", 0, 15, since=sent_to, epoch=epochs[NEW])


@pytest.mark.parametrize("said", [OLD, UNKNOWN])
@pytest.mark.parametrize("overrules", [False, True])
def test_commit_of_lost_messages_raises_offset_reset(
    lost: Bench, epochs: list[int], overrules: bool, said: int
) -> None:
    """Cover offsets that other messages have now, which no member has processed."""
    with pytest.raises(OffsetReset) as refused:
        lost.core.offsets.commit("g", "t", 0, 8, since=3, epoch=(*epochs, 7)[said], overrules_reset=overrules)
    assert refused.value.offset == 3
    assert lost.core.offsets.get("g", "t", 0) == 3


def test_commit_of_kept_messages_counts(lost: Bench, epochs: list[int]) -> None:
    assert lost.core.offsets.commit("g", "t", 0, 5, since=3, epoch=epochs[OLD])
    assert lost.core.offsets.get("g", "t", 0) == 5


def test_group_offset_is_cut_to_kept_messages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lose(bench, monkeypatch, committed=7)
    assert fetch_offsets(bench, 8, before, "g") == (5, [])
    assert bench.core.offsets.get("g", "t", 0) == 5


def test_lost_group_is_sent_back(lost: Bench, epochs: list[int]) -> None:
    assert lost.store.group_configs.get("lost") is None
    for _ in range(2):
        assert fetch_offsets(lost, 8, epochs[OLD], "lost") == (5, [])


def test_deleted_topic_yields_error_part(lost: Bench, epochs: list[int]) -> None:
    lost.core.topics.delete("t")
    parts = FetchSession(lost.core, [FetchSpec("t", 0, 8, epoch=epochs[OLD])], 100, 1 << 20, "g").read_available()
    assert [part.error is not None for part in parts] == [True]


@pytest.mark.parametrize(("offset", "next_offset"), [(16, 5), (15, 15), (14, 15)])
def test_foreign_client_beyond_end_is_sent_to_cut_position(lost: Bench, offset: int, next_offset: int) -> None:
    """Cover a client without epochs: beyond the end, it has surely read lost messages."""
    pulled = pull(lost.core, "g", FetchSpec("t", 0, offset), 32, 1 << 20)
    assert pulled.next_offset == next_offset
    assert (pulled.status is PullStatus.OFFSET_MOVED) is (offset == 16)


def test_reader_beyond_end_of_intact_log_is_sent_to_end(bench: Bench, tmp_path: Path) -> None:
    bench.append(Message("t", b"0"))
    bench.crash()
    assert pull(bench.core, "g", FetchSpec("t", 0, 9), 32, 1 << 20).next_offset == 1
