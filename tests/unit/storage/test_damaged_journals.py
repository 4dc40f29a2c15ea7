"""Test that changed bytes in a journal cost only their frame and are reported."""

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


def open_new_store(directory: Path) -> Store:
    """Open a new store, which `kill` leaves as a kill would."""
    return Store.open(directory, CONFIG)


def kill(store: Store) -> None:
    store._flusher.stop()
    store._abandon()


def flip_bit(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def middle_of_frame(path: Path, number: int) -> int:
    content, at = path.read_bytes(), 0
    for _ in range(number):
        at += 8 + int.from_bytes(content[at : at + 4], "big")
    return at + 8 + int.from_bytes(content[at : at + 4], "big") // 2


def test_flipped_bit_costs_only_its_frame() -> None:
    content = b"".join(map(encode_frame, ENTRIES))
    each = len(content) // len(ENTRIES)
    for at in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            found, damaged = decode_frames(bytes(changed)), at // each
            assert found.entries + found.behind == ENTRIES[:damaged] + ENTRIES[damaged + 1 :]
            assert len(found.entries) == damaged
            # A changed length of the last frame looks like a frame that was not written whole.
            assert found.damage or (damaged == len(ENTRIES) - 1 and at % each < 4)
            assert all(begin == damaged * each for begin, _ in found.damage)


@pytest.mark.parametrize("cut", range(1, len(encode_frame(ENTRIES[0]))))
def test_partial_last_frame_is_not_damage(cut: int) -> None:
    content = b"".join(map(encode_frame, ENTRIES))
    found = decode_frames(content[:-cut])
    assert (found.entries, found.behind, found.damage) == (ENTRIES[:-1], [], [])
    assert found.length == len(content) - len(encode_frame(ENTRIES[-1]))


def test_entries_appended_behind_damage_are_read_at_next_open(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    journal = Journal(path, writable=True)
    for entry in ENTRIES[:3]:
        journal.append(entry)
    journal.close()
    flip_bit(path, middle_of_frame(path, 1))
    for expected in (ENTRIES[2:3], ENTRIES[2:4]):
        journal = Journal(path, writable=True)
        assert (journal.entries, journal.behind) == (ENTRIES[:1], expected)
        assert [(file, at) for file, at, _ in journal.damage] == [(path, len(encode_frame(ENTRIES[0])))]
        journal.append(ENTRIES[3])
        journal.close()


def test_commits_behind_a_flipped_bit_are_kept(tmp_path: Path) -> None:
    # All of them used to be dropped silently: 20 was committed, and the group was at 9.
    store = open_new_store(tmp_path)
    for offset in range(1, 21):
        store.consumer_offsets.commit("g", "t", 0, offset)
        store.consumer_offsets.commit("h", "t", 0, offset)
    kill(store)
    path = tmp_path / "raymq" / "progress.journal"
    flip_bit(path, middle_of_frame(path, 20))
    # The store would cut the offsets to the missing queue, so that the journal is read by itself.
    reopened = Journal(path, writable=False)
    assert reopened.behind[-2:] == [("c", "g", "t", 0, 20), ("c", "h", "t", 0, 20)]
    with Store.open(tmp_path, CONFIG) as store:
        assert [each.file for each in store.recovery.corruption] == [str(path)]
    with Store.open(tmp_path, CONFIG) as store:
        assert not store.recovery.corruption


def test_topics_behind_a_flipped_bit_are_kept(tmp_path: Path) -> None:
    store = open_new_store(tmp_path)
    for number in range(5):
        store.topic_configs.put(TopicConfig(f"t{number}", 1, 1))
    kill(store)
    path = tmp_path / "raymq" / "topics.journal"
    flip_bit(path, middle_of_frame(path, 2))
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t3", "t4"]
        assert [each.file for each in store.recovery.corruption] == [str(path)]
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t3", "t4"]
        assert not store.recovery.corruption


def open_table(path: Path) -> InFlightTable:
    return InFlightTable(path, writable=True)


def make_messages(offsets: range) -> dict[int, InFlightMessage]:
    return {offset: InFlightMessage(1_000, 2_000, 0, 16, 1_000) for offset in offsets}


@pytest.mark.parametrize("damaged", range(1, 5))
def test_pop_deliveries_hidden_by_a_flipped_bit_are_redelivered(tmp_path: Path, damaged: int) -> None:
    # With 1,500 messages in frames of 500, those behind a damaged frame were neither in flight nor redelivered.
    path, queue = tmp_path / "in_flight.journal", ("g", "t", 0)
    table = open_table(path)
    table.deliver(queue, 1_600, make_messages(range(1_500)))
    table.close(rewrite=True)
    table = open_table(path)
    table.deliver(queue, 1_700, make_messages(range(1_600, 1_700)))
    table.close(rewrite=False)
    flip_bit(path, middle_of_frame(path, damaged))
    table = open_table(path)
    known = table.queues.get(queue)
    following = 0 if known is None else known.next_offset  # an unknown queue continues at the group's offset
    out = set() if known is None else set(known.deliveries)
    assert out | {*range(following, 1_700)} >= {*range(1_500), *range(1_600, 1_700)}
    assert len(table.damage) == 1
    table.close(rewrite=False)


def test_acknowledgements_behind_a_flipped_bit_are_kept(tmp_path: Path) -> None:
    path, queue = tmp_path / "in_flight.journal", ("g", "t", 0)
    table = open_table(path)
    table.deliver(queue, 10, make_messages(range(10)))
    table.deliver(queue, 20, make_messages(range(10, 20)))
    table.acknowledge(queue, range(3, 15))
    table.deliver(queue, 30, make_messages(range(20, 30)))
    table.close(rewrite=False)
    flip_bit(path, middle_of_frame(path, 2))  # behind the table's first frames
    table = open_table(path)
    assert list(table.queues[queue].deliveries) == [0, 1, 2]
    assert table.queues[queue].next_offset == 10
    table.close(rewrite=False)


def test_damaged_base_file_is_reported(tmp_path: Path) -> None:
    path, queue = tmp_path / "in_flight.journal", ("g", "t", 0)
    base = path.with_name(path.name + ".base")
    base.write_bytes(b"".join(map(encode_frame, [("d", *queue, 10, [[9, 1, 2, 0, 16, 1]]), ("d", "h", "t", 0, 5, [])])))
    base.write_bytes(base.read_bytes()[:-3])
    table = open_table(path)
    assert list(table.queues[queue].deliveries) == [9]
    assert [file for file, _, _ in table.damage] == [base]
    table.close(rewrite=False)
