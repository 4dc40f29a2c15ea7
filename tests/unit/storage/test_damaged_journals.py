"""Bytes of a journal that have changed cost the frame that they stand in, and that is told; not those behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.journal_frames import decode_frames, encode_frame
from raymq.storage.tables.topic_config import TopicConfig

CONFIG = StoreConfig(commitlog_file_bytes=1 << 16, consume_queue_file_entries=100, index_slots=10, index_entries=100)
ENTRIES = [("c", "group", "topic", number, 70_000 + number) for number in range(6)]


def killed(directory: Path) -> Store:
    """A new store; what was done to it since is left as a kill would."""
    return Store.open(directory, CONFIG)


def kill(store: Store) -> None:
    store._flusher.stop()
    store._abandon()


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def middle_of_frame(path: Path, number: int) -> int:
    content, at = path.read_bytes(), 0
    for _ in range(number):
        at += 8 + int.from_bytes(content[at : at + 4], "big")
    return at + 8 + int.from_bytes(content[at : at + 4], "big") // 2


def test_a_bit_that_flips_anywhere_costs_the_frame_that_it_is_in() -> None:
    content = b"".join(map(encode_frame, ENTRIES))
    each = len(content) // len(ENTRIES)
    for at in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            found, damaged = decode_frames(bytes(changed)), at // each
            assert found.entries + found.behind == ENTRIES[:damaged] + ENTRIES[damaged + 1 :]
            assert len(found.entries) == damaged
            # The last one may as well be one that was not written whole, if it is its length that has changed.
            assert found.damage or (damaged == len(ENTRIES) - 1 and at % each < 4)
            assert all(begin == damaged * each for begin, _ in found.damage)


@pytest.mark.parametrize("cut", range(1, len(encode_frame(ENTRIES[0]))))
def test_a_frame_that_was_not_written_whole_is_no_damage(cut: int) -> None:
    content = b"".join(map(encode_frame, ENTRIES))
    found = decode_frames(content[:-cut])
    assert (found.entries, found.behind, found.damage) == (ENTRIES[:-1], [], [])
    assert found.length == len(content) - len(encode_frame(ENTRIES[-1]))


def test_what_is_appended_behind_damage_is_heard_by_the_next_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    journal = Journal(path, writable=True)
    for entry in ENTRIES[:3]:
        journal.append(entry)
    journal.close()
    flip(path, middle_of_frame(path, 1))
    for expected in (ENTRIES[2:3], ENTRIES[2:4]):
        journal = Journal(path, writable=True)
        assert (journal.entries, journal.behind) == (ENTRIES[:1], expected)
        assert [(file, at) for file, at, _ in journal.damage] == [(path, len(encode_frame(ENTRIES[0])))]
        journal.append(ENTRIES[3])
        journal.close()


def test_commits_behind_a_bit_that_flipped_are_kept(tmp_path: Path) -> None:
    """All of them were dropped without a word: 20 was committed, and the group was at 9."""
    store = killed(tmp_path)
    for offset in range(1, 21):
        store.consumer_offsets.commit("g", "t", 0, offset)
        store.consumer_offsets.commit("h", "t", 0, offset)
    kill(store)
    path = tmp_path / "raymq" / "progress.journal"
    flip(path, middle_of_frame(path, 20))
    # Its queue is gone, so that the offsets would be cut to it: what is read of the journal is looked at by itself.
    told = Journal(path, writable=False)
    assert told.behind[-2:] == [("c", "g", "t", 0, 20), ("c", "h", "t", 0, 20)]
    with Store.open(tmp_path, CONFIG) as store:
        assert [each.file for each in store.recovery.corruption] == [str(path)]
    with Store.open(tmp_path, CONFIG) as store:
        assert not store.recovery.corruption


def test_topics_that_were_made_behind_a_bit_that_flipped_are_there(tmp_path: Path) -> None:
    store = killed(tmp_path)
    for number in range(5):
        store.topic_configs.put(TopicConfig(f"t{number}", 1, 1))
    kill(store)
    path = tmp_path / "raymq" / "topics.journal"
    flip(path, middle_of_frame(path, 2))
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t3", "t4"]
        assert [each.file for each in store.recovery.corruption] == [str(path)]
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t3", "t4"]
        assert not store.recovery.corruption


def opened(path: Path) -> InFlightTable:
    return InFlightTable(path, writable=True)


def lent(offsets: range) -> dict[int, InFlightMessage]:
    return {offset: InFlightMessage(1_000, 2_000, 0, 16, 1_000) for offset in offsets}


@pytest.mark.parametrize("damaged", range(1, 5))
def test_what_pop_has_lent_and_a_flipped_bit_hides_is_lent_again(tmp_path: Path, damaged: int) -> None:
    """1,500 were out, in frames of 500: behind a damaged one the others were neither out nor ever given out again."""
    path, queue = tmp_path / "in_flight.journal", ("g", "t", 0)
    table = opened(path)
    table.deliver(queue, 1_600, lent(range(1_500)))
    table.close(rewrite=True)
    table = opened(path)
    table.deliver(queue, 1_700, lent(range(1_600, 1_700)))
    table.close(rewrite=False)
    flip(path, middle_of_frame(path, damaged))
    table = opened(path)
    known = table.queues.get(queue)
    following = 0 if known is None else known.next_offset  # it goes on where the group is
    out = set() if known is None else set(known.deliveries)
    assert out | {*range(following, 1_700)} >= {*range(1_500), *range(1_600, 1_700)}
    assert len(table.damage) == 1
    table.close(rewrite=False)


def test_what_was_acknowledged_behind_a_flipped_bit_stays_so(tmp_path: Path) -> None:
    path, queue = tmp_path / "in_flight.journal", ("g", "t", 0)
    table = opened(path)
    table.deliver(queue, 10, lent(range(10)))
    table.deliver(queue, 20, lent(range(10, 20)))
    table.acknowledge(queue, range(3, 15))
    table.deliver(queue, 30, lent(range(20, 30)))
    table.close(rewrite=False)
    flip(path, middle_of_frame(path, 2))  # behind the table's first words
    table = opened(path)
    assert list(table.queues[queue].deliveries) == [0, 1, 2]
    assert table.queues[queue].next_offset == 10
    table.close(rewrite=False)


def test_the_place_of_a_damaged_base_is_told(tmp_path: Path) -> None:
    path, queue = tmp_path / "in_flight.journal", ("g", "t", 0)
    base = path.with_name(path.name + ".base")
    base.write_bytes(b"".join(map(encode_frame, [("d", *queue, 10, [[9, 1, 2, 0, 16, 1]]), ("d", "h", "t", 0, 5, [])])))
    base.write_bytes(base.read_bytes()[:-3])
    table = opened(path)
    assert list(table.queues[queue].deliveries) == [9]
    assert [file for file, _, _ in table.damage] == [base]
    table.close(rewrite=False)
