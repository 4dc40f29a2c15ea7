"""Test that changed bytes in a journal cost only their frame and are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreFull
from raymq.storage.journal.journal_frames import decode_frames, encode_frame, frame_of
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from raymq.storage.tables.topic_config import TopicConfig
from tests.state_journals import open_table, open_tables
from tests.store_records import append, make_record

CONFIG = StoreConfig(commitlog_file_bytes=1 << 16, consume_queue_file_entries=100, index_slots=10, index_entries=100)
#: How many frames the journal of a new store begins with: its recovery epoch and its delay levels, twice each.
FIRST = 4
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
            behind = damaged if at % each < 4 else damaged + 1  # a changed length is corrected
            assert found.entries == ENTRIES[:damaged]
            assert found.behind == ENTRIES[behind:]
            assert found.damage
            assert all(begin == damaged * each for begin, _ in found.damage)


@pytest.mark.parametrize("cut", range(1, len(encode_frame(ENTRIES[0]))))
def test_partial_last_frame_is_not_damage(cut: int) -> None:
    content = b"".join(map(encode_frame, ENTRIES))
    found = decode_frames(content[:-cut])
    assert (found.entries, found.behind, found.damage) == (ENTRIES[:-1], [], [])
    assert found.length == len(content) - len(encode_frame(ENTRIES[-1]))


def test_content_of_incomplete_frame_is_not_read_as_frames() -> None:
    embedded = encode_frame(("chosen by a client",))
    frames = encode_frame(ENTRIES[0]) + encode_frame((7, embedded * 50))
    for cut in range(1, len(embedded) * 50):
        found = decode_frames(frames[:-cut])
        assert (found.entries, found.behind, found.damage) == (ENTRIES[:1], [], [])


def test_frame_that_is_no_list_of_values_is_damage() -> None:
    frames = encode_frame(ENTRIES[0]) + frame_of(b"\x93\xc1") + encode_frame(ENTRIES[1])
    found = decode_frames(frames)
    assert (found.entries, found.behind) == (ENTRIES[:1], ENTRIES[1:2])
    assert len(found.damage) == 1


def test_entries_appended_behind_damage_are_read() -> None:
    content = bytearray(b"".join(map(encode_frame, ENTRIES[:3])))
    content[len(encode_frame(ENTRIES[0])) + 12] ^= 1
    for count in (3, 4):
        found = decode_frames(bytes(content) + b"".join(map(encode_frame, ENTRIES[3:count])))
        assert (found.entries, found.behind) == (ENTRIES[:1], ENTRIES[2:count])
        assert len(found.damage) == 1


def journal_of(directory: Path) -> Path:
    """Return the newest journal of the state."""
    return max((directory / "raymq" / "state").glob("journal-*"))


def told_damage(store: Store) -> list[tuple[str, str]]:
    """Return the file of each damage that an open has reported, and how much of it."""
    return [(each.file, " ".join(each.reason.split()[:2])) for each in store.recovery.corruption]


def test_commits_behind_a_flipped_bit_are_kept(tmp_path: Path) -> None:
    # All of them used to be dropped silently: 20 was committed, and the group was at 9.
    store = open_new_store(tmp_path)
    append(store, *[make_record(topic="t")] * 20)
    for offset in range(1, 21):
        store.consumer_offsets.commit("g", "t", 0, offset)
        store.consumer_offsets.commit("h", "t", 0, offset)
    kill(store)
    path = journal_of(tmp_path)
    flip_bit(path, middle_of_frame(path, 20))
    with Store.open(tmp_path, CONFIG) as store:
        assert [store.consumer_offsets.get(group, "t", 0) for group in "gh"] == [20, 20]
        assert told_damage(store) == [(str(path), "22 bytes"), (str(path.parent), "1 changes")]
    with Store.open(tmp_path, CONFIG) as store:
        assert [store.consumer_offsets.get(group, "t", 0) for group in "gh"] == [20, 20]
        assert not store.recovery.corruption


def test_topics_behind_a_flipped_bit_are_kept(tmp_path: Path) -> None:
    store = open_new_store(tmp_path)
    for number in range(5):
        store.topic_configs.put(TopicConfig(f"t{number}", 1, 1))
    kill(store)
    path = journal_of(tmp_path)
    flip_bit(path, middle_of_frame(path, FIRST + 2))
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t3", "t4"]
        assert [file for file, _ in told_damage(store)] == [str(path), str(path.parent)]
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t3", "t4"]
        assert not store.recovery.corruption


def make_messages(offsets: range) -> dict[int, InFlightMessage]:
    return {offset: InFlightMessage(1_000, 2_000, 0, 16, 1_000) for offset in offsets}


@pytest.mark.parametrize("damaged", range(1, 4))
def test_pop_deliveries_hidden_by_a_flipped_bit_are_redelivered(tmp_path: Path, damaged: int) -> None:
    # With 1,500 messages in events of 500, those behind a damaged event were neither in flight nor redelivered.
    table, queue = InFlightTable(), ("g", "t", 0)
    journal = open_tables(tmp_path, table)
    table.deliver(queue, 1_600, make_messages(range(1_500)))
    journal.compact()
    table.deliver(queue, 1_700, make_messages(range(1_600, 1_700)))
    journal.close(compact=False)
    (snapshot,) = (tmp_path / "raymq" / "state").glob("snapshot-*")
    flip_bit(snapshot, middle_of_frame(snapshot, damaged + 1))  # behind the snapshot's two first frames
    for path in (tmp_path / "raymq" / "state").glob("journal-*1"):
        path.unlink()  # with the first journal, nothing would be lost
    again = InFlightTable()
    loaded = open_tables(tmp_path, again).loaded
    known = again.queues.get(queue)
    following = 0 if known is None else known.next_offset  # an unknown queue continues at the group's offset
    out = set() if known is None else set(known.deliveries)
    assert out | {*range(following, 1_700)} >= {*range(1_500), *range(1_600, 1_700)}
    assert [path for path, _, _ in loaded.damage] == [snapshot]
    assert loaded.is_salvaged


@pytest.mark.parametrize("damaged", range(2))
def test_deliveries_behind_a_damaged_delivery_are_redelivered(tmp_path: Path, damaged: int) -> None:
    table, queue = open_table(tmp_path, InFlightTable()), ("g", "t", 0)
    for begin in (0, 10, 20):
        table.deliver(queue, begin + 10, make_messages(range(begin, begin + 10)))
    path = journal_of(tmp_path)
    flip_bit(path, middle_of_frame(path, damaged))
    again = InFlightTable()
    assert open_tables(tmp_path, again).loaded.lost == 1
    known = again.queues.get(queue)
    assert (0 if known is None else known.next_offset) == 10 * damaged
    assert (set() if known is None else set(known.deliveries)) == set(range(10 * damaged))


def test_acknowledgements_behind_a_flipped_bit_are_kept(tmp_path: Path) -> None:
    table, queue = open_table(tmp_path, InFlightTable()), ("g", "t", 0)
    table.deliver(queue, 10, make_messages(range(10)))
    table.deliver(queue, 20, make_messages(range(10, 20)))
    table.acknowledge(queue, range(3, 15))
    table.deliver(queue, 30, make_messages(range(20, 30)))
    path = journal_of(tmp_path)
    flip_bit(path, middle_of_frame(path, 1))
    again = open_table(tmp_path, InFlightTable())
    assert list(again.queues[queue].deliveries) == [0, 1, 2]
    assert again.queues[queue].next_offset == 10


def test_damaged_snapshot_is_reported_and_costs_nothing(tmp_path: Path) -> None:
    # The snapshot before it, and the journals behind that one, are kept.
    for number in range(3):
        with Store.open(tmp_path, CONFIG) as store:
            store.topic_configs.put(TopicConfig(f"t{number}", 1, 1))
    newest = max((tmp_path / "raymq" / "state").glob("snapshot-*"))
    newest.write_bytes(newest.read_bytes()[:-40])  # more than its last frame, which is there twice
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t1", "t2"]
        assert [each.file for each in store.recovery.corruption] == [str(newest)]
    with Store.open(tmp_path, CONFIG) as store:
        assert not store.recovery.corruption


def test_damage_met_again_after_a_full_disk_loses_nothing_more(tmp_path: Path) -> None:
    # A start replaces damaged files by a snapshot; without room for it, it goes on with the damaged ones.
    store = open_new_store(tmp_path)
    for number in range(3):
        store.topic_configs.put(TopicConfig(f"t{number}", 1, 1))
    kill(store)
    path = journal_of(tmp_path)
    flip_bit(path, middle_of_frame(path, FIRST + 1))
    for number in (3, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StateJournal, "compact", refuse)
            store = open_new_store(tmp_path)
            assert told_damage(store)[-1] == (str(path.parent), "1 changes")
            store.topic_configs.put(TopicConfig(f"t{number}", 1, 1))
            kill(store)
    with Store.open(tmp_path, CONFIG) as store:
        assert sorted(store.topic_configs.all()) == ["t0", "t2", "t3", "t4"]


def refuse(_: StateJournal) -> None:
    raise StoreFull("no room")
