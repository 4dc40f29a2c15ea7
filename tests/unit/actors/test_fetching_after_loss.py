"""A fetch by a reader from before a loss of power: it is told from where on the log is not the one it read."""

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

#: What a reader names as its epoch: of before the loss, of after it, one that is not known here, none yet, none at all.
OLD, NEW, UNKNOWN, NOT_YET, NEVER = range(5)


@pytest.fixture
def epochs() -> list[int]:
    """The epochs of before and after the loss."""
    return []


def lose(bench: Bench, monkeypatch: pytest.MonkeyPatch, committed: int) -> int:
    """Queue 0 of "t" was read up to 8; 5 of these are left, and behind them are 10 other messages. The epoch before."""
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
    """The group "g" had done 3 of what `lose` leaves."""
    epochs.append(lose(bench, monkeypatch, committed=3))
    epochs.append(bench.store.epoch)
    return bench


def asked(bench: Bench, offset: int, epoch: int | None, group: str | None = None) -> tuple[int | None, list[int]]:
    """Where the reader is sent, if it is, and the offsets that it gets."""
    fetch = FetchSession(bench.core, [FetchSpec("t", 0, offset, epoch=epoch)], 100, 1 << 20, group)
    (part,) = fetch.read_available() or [None]
    assert fetch.is_stale is (epoch not in (None, bench.store.epoch))
    if part is None:
        return None, []
    return (part.error.offset if isinstance(part.error, OffsetReset) else None), part.offsets.tolist()


@pytest.mark.parametrize(
    ("offset", "said", "sent_to", "first"),
    [
        (8, OLD, 5, None),  # it has read 5, 6 and 7, which are others now
        (12, OLD, 5, None),
        (5, OLD, None, 5),
        (3, OLD, None, 3),
        (8, NEW, None, 8),  # it has read them in this epoch
        (8, UNKNOWN, 0, None),
        (8, NOT_YET, None, 8),  # it does not know under which
        (8, NEVER, None, 8),
    ],
)
def test_who_has_read_what_is_lost_reads_again(
    lost: Bench, epochs: list[int], offset: int, said: int, sent_to: int | None, first: int | None
) -> None:
    told, offsets = asked(lost, offset, (*epochs, 7, 0, None)[said])
    assert told == sent_to
    assert offsets[:1] == ([] if first is None else [first])


@pytest.mark.parametrize("said", [OLD, UNKNOWN])
@pytest.mark.parametrize(("committed", "sent_to"), [(None, 3), (5, 5), (14, 14)])
def test_a_member_from_before_goes_to_where_its_group_is_which_stays_there(
    lost: Bench, epochs: list[int], committed: int | None, sent_to: int, said: int
) -> None:
    """Also one that was cut off for long: others have read on, and are not taken back."""
    if committed is not None:
        assert lost.core.offsets.commit("g", "t", 0, committed, since=3, epoch=epochs[NEW])
    for _ in range(2):  # the answer may be lost, and then it asks again
        assert asked(lost, 8, (*epochs, 7)[said], "g") == (sent_to, [])
    assert lost.core.offsets.get("g", "t", 0) == sent_to
    told, offsets = asked(lost, sent_to, epochs[NEW], "g")
    assert (told, offsets[:1], offsets[-1:]) == (None, [sent_to], [14])
    assert lost.core.offsets.commit("g", "t", 0, 15, since=sent_to, epoch=epochs[NEW])


@pytest.mark.parametrize("said", [OLD, UNKNOWN])
@pytest.mark.parametrize("overrules", [False, True])
def test_a_commit_of_what_the_log_has_lost_does_not_count(
    lost: Bench, epochs: list[int], overrules: bool, said: int
) -> None:
    """Other messages have these offsets now, and nobody of the group has done them."""
    with pytest.raises(OffsetReset) as refused:
        lost.core.offsets.commit("g", "t", 0, 8, since=3, epoch=(*epochs, 7)[said], overrules_reset=overrules)
    assert refused.value.offset == 3
    assert lost.core.offsets.get("g", "t", 0) == 3


def test_a_commit_of_what_was_kept_counts(lost: Bench, epochs: list[int]) -> None:
    assert lost.core.offsets.commit("g", "t", 0, 5, since=3, epoch=epochs[OLD])
    assert lost.core.offsets.get("g", "t", 0) == 5


def test_what_a_group_had_done_is_cut_to_what_was_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lose(bench, monkeypatch, committed=7)
    assert asked(bench, 8, before, "g") == (5, [])
    assert bench.core.offsets.get("g", "t", 0) == 5


def test_a_group_that_is_lost_as_well_is_sent_back(lost: Bench, epochs: list[int]) -> None:
    assert lost.store.group_configs.get("lost") is None
    for _ in range(2):
        assert asked(lost, 8, epochs[OLD], "lost") == (5, [])


def test_a_topic_that_is_gone_is_no_reason_to_fail(lost: Bench, epochs: list[int]) -> None:
    lost.core.topics.delete("t")
    parts = FetchSession(lost.core, [FetchSpec("t", 0, 8, epoch=epochs[OLD])], 100, 1 << 20, "g").read_available()
    assert [part.error is not None for part in parts] == [True]


@pytest.mark.parametrize(("offset", "next_offset"), [(16, 5), (15, 15), (14, 15)])
def test_a_foreign_client_beyond_the_end_goes_to_where_the_log_was_cut(
    lost: Bench, offset: int, next_offset: int
) -> None:
    """It does not say what it knows. Beyond the end it surely has been before."""
    pulled = pull(lost.core, "g", FetchSpec("t", 0, offset), 32, 1 << 20)
    assert pulled.next_offset == next_offset
    assert (pulled.status is PullStatus.OFFSET_MOVED) is (offset == 16)


def test_beyond_the_end_of_a_log_that_was_not_cut_one_goes_to_its_end(bench: Bench, tmp_path: Path) -> None:
    bench.append(Message("t", b"0"))
    bench.crash()
    assert pull(bench.core, "g", FetchSpec("t", 0, 9), 32, 1 << 20).next_offset == 1
