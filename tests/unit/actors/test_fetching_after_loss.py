"""A fetch by a reader from before a loss of power: it is told from where on the log is not the one it read."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.core.fetching import Fetch, Wanted
from raymq.actors.core.pulling import PullStatus, pull
from raymq.actors.errors import OffsetReset
from raymq.client import Message
from tests.machine import Machine
from tests.unit.actors.bench import Bench


@pytest.fixture
def lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Queue 0 of "t" was read up to 8 in epoch 1; 5 of these are left, and behind them are 10 other messages."""
    machine = Machine(monkeypatch)
    bench.append(*(Message("t", b"%d" % number) for number in range(5)))
    kept = bench.store.max_physical_offset
    bench.append(*(Message("t", b"%d" % number) for number in range(5, 8)))
    bench.core.ensure_group("g")
    bench.store._flusher.stop()
    bench.store._abandon()
    machine.lose_power(bench.directory, kept)
    bench.open()
    bench.append(*(Message("t", b"new") for _ in range(10)))
    return bench


def asked(bench: Bench, offset: int, epoch: int | None, group: str | None = None) -> tuple[int | None, list[int]]:
    """Where the reader is sent, if it is, and the offsets that it gets."""
    fetch = Fetch(bench.core, [Wanted("t", 0, offset, epoch=epoch)], 100, 1 << 20, group)
    (part,) = fetch.look() or [None]
    assert fetch.is_stale is (epoch not in (None, bench.store.epoch))
    if part is None:
        return None, []
    return (part.error.offset if isinstance(part.error, OffsetReset) else None), part.offsets.tolist()


@pytest.mark.parametrize(
    ("offset", "epoch", "sent_to", "first"),
    [
        (8, 1, 5, None),  # it has read 5, 6 and 7, which are others now
        (12, 1, 5, None),
        (5, 1, None, 5),
        (3, 1, None, 3),
        (8, 2, None, 8),  # it has read them in this epoch
        (8, 0, None, 8),  # it does not know under which
        (8, None, None, 8),
    ],
)
def test_who_has_read_what_is_lost_reads_again(
    lost: Bench, offset: int, epoch: int | None, sent_to: int | None, first: int | None
) -> None:
    assert lost.store.epoch == 2
    told, offsets = asked(lost, offset, epoch)
    assert told == sent_to
    assert offsets[:1] == ([] if first is None else [first])


@pytest.mark.parametrize(("committed", "sent_to"), [(None, 5), (3, 3), (5, 5), (14, 5)])
def test_a_group_goes_back_to_what_it_has_done_and_its_old_commits_do_not_count(
    lost: Bench, committed: int | None, sent_to: int
) -> None:
    if committed is not None:
        lost.core.offsets.commit("g", "t", 0, committed)
    assert asked(lost, 8, 1, "g") == (sent_to, [])
    assert lost.core.offsets.commit("g", "t", 0, 9) is False, "a commit that was on its way"
    assert asked(lost, 8, 2, "g") == (sent_to, []), "the answer was lost, and it asks again"
    told, offsets = asked(lost, sent_to, 2, "g")
    assert (told, offsets[0], offsets[-1]) == (None, sent_to, 14)
    assert lost.core.offsets.commit("g", "t", 0, 9) is True


def test_a_group_that_is_lost_as_well_is_sent_back(lost: Bench) -> None:
    assert lost.store.group_configs.get("lost") is None
    assert asked(lost, 8, 1, "lost") == (5, [])
    assert asked(lost, 8, 2, "lost") == (5, [])


def test_a_topic_that_is_gone_is_no_reason_to_fail(lost: Bench) -> None:
    lost.core.topics.delete("t")
    parts = Fetch(lost.core, [Wanted("t", 0, 8, epoch=1)], 100, 1 << 20, "g").look()
    assert [part.error is not None for part in parts] == [True]


@pytest.mark.parametrize(("offset", "next_offset"), [(16, 5), (15, 15), (14, 15)])
def test_a_foreign_client_beyond_the_end_goes_to_where_the_log_was_cut(
    lost: Bench, offset: int, next_offset: int
) -> None:
    """It does not say what it knows. Beyond the end it surely has been before."""
    pulled = pull(lost.core, "g", Wanted("t", 0, offset), 32, 1 << 20)
    assert pulled.next_offset == next_offset
    assert (pulled.status is PullStatus.OFFSET_MOVED) is (offset == 16)


def test_beyond_the_end_of_a_log_that_was_not_cut_one_goes_to_its_end(bench: Bench, tmp_path: Path) -> None:
    bench.append(Message("t", b"0"))
    bench.crash()
    assert pull(bench.core, "g", Wanted("t", 0, 9), 32, 1 << 20).next_offset == 1
