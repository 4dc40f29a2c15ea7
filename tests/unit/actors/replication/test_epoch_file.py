"""Test the epoch map and its file, RocketMQ's `epochFileCheckpoint`."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.actors.broker.replication.epoch_file import EpochFile
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import Hello, encode_epochs, read_epochs, read_hello
from raymq.actors.broker.replication.replication_frames import FrameKind
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.leader_epoch_checkpoint import MAX_EPOCHS, cut, decode, encode
from tests.faulty_calls import FaultyCalls


def at(offset: int, sequence: int = 0) -> StreamPosition:
    return StreamPosition(offset, sequence)


def epochs(*entries: tuple[int, int]) -> EpochMap:
    return EpochMap(EpochStart(epoch, at(start)) for epoch, start in entries)


def test_rocketmq_source_example_round_trips() -> None:
    """Use the four lines shown in RocketMQ's `CheckpointFile.java`."""
    content = b"2\n773307083\n7-7000\n8-8000\n"
    assert encode([(7, 7000), (8, 8000)]) == content
    assert decode(content) == [(7, 7000), (8, 8000)]
    assert decode(content.replace(b"773307083", b"0")) == [(7, 7000), (8, 8000)], "0 is not checked"
    assert decode(b"0\n0\n") == []


def test_windows_line_ends_are_read() -> None:
    lines = b"7-7000\r\n8-8000\r\n"
    content = b"2\r\n%d\r\n" % (zlib.crc32(lines) & 0x7FFFFFFF) + lines
    assert decode(content) == [(7, 7000), (8, 8000)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"2\n",
        b"2\n773307083\n7-7000\n",
        b"2\n773307083\n7-7000\n8-8001\n",
        b"2\n773307083\n7-7000\n8-8000",
        b"2\n773307084\n7-7000\n8-8000\n",
        b"1\n773307083\n7-7000\n8-8000\n",
        b"x\n0\n",
        b"1\n0\n7\n",
        b"1\n0\n-7-1\n",
        b"1\n0\n7-9223372036854775808\n",
        b"1\n0\n2147483648-1\n",
        b"\xff\n0\n",
    ],
)
def test_damaged_checkpoint_raises_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"line|entries|CRC|number|ordinal|decode"):
        decode(content)


def test_epoch_file_keeps_sequences_and_falls_back_to_backup(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "epochFileCheckpoint", tmp_path / "raymq" / "epochs")
    assert file.load() == EpochMap()
    made = EpochMap([EpochStart(1, BEGIN), EpochStart(4, at(700, 12))])
    file.save(made)
    assert file.load() == made
    made.append(EpochStart(5, at(700, 12)))
    file.save(made)
    assert (tmp_path / "epochFileCheckpoint").read_bytes().startswith(b"3\n")
    (tmp_path / "epochFileCheckpoint").write_bytes(b"3\n17\n")
    assert [entry.epoch for entry in file.load()] == [1, 4], "what it said before its last change"
    (tmp_path / "epochFileCheckpoint.bak").write_bytes(b"")
    with pytest.raises(StoreCorrupt):
        file.load()


def test_lost_sequence_file_moves_epoch_starts_earlier(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "e", tmp_path / "raymq" / "epochs")
    file.save(EpochMap([EpochStart(1, BEGIN), EpochStart(4, at(700, 12)), EpochStart(6, at(800, 15))]))
    (tmp_path / "raymq" / "epochs").write_bytes(encode([(1, 0), (4, 12)]))
    assert [entry.start for entry in file.load()] == [BEGIN, at(700, 12), at(800, 12)]
    (tmp_path / "raymq" / "epochs").unlink()
    assert [entry.start for entry in file.load()] == [BEGIN, at(700), at(800)]


def test_rocketmq_checkpoint_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(b"2\n773307083\n7-7000\n8-8000\n")
    assert EpochFile(tmp_path / "e", tmp_path / "raymq" / "epochs").load() == epochs((7, 7000), (8, 8000))


def test_full_disk_keeps_old_epoch_file(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "e", tmp_path / "raymq" / "epochs")
    file.save(epochs((1, 0)))
    with replaced(FaultyCalls("write", 1, 28)), pytest.raises(StoreFull):
        file.save(epochs((1, 0), (2, 10)))
    assert file.load() == epochs((1, 0))


def test_elections_without_writes_keep_both_epochs(tmp_path: Path) -> None:
    made = epochs((3, 100), (4, 100))
    assert made.end_of(3, at(150)) == at(100)
    assert made.end_of(4, at(150)) == at(150)
    file = EpochFile(tmp_path / "e", tmp_path / "o")
    file.save(made)
    assert file.load() == made


@pytest.mark.parametrize(
    "entry", [EpochStart(3, at(200)), EpochStart(2, at(200)), EpochStart(4, at(99)), EpochStart(0, BEGIN)]
)
def test_non_increasing_epoch_raises_invalid_input(entry: EpochStart) -> None:
    with pytest.raises(InvalidInput):
        epochs((1, 0), (3, 100)).append(entry)


def test_cut_removes_newer_epochs() -> None:
    made = epochs((1, 0), (3, 100), (4, 100), (6, 200))
    made.cut(4)
    assert made == epochs((1, 0), (3, 100), (4, 100))
    made.cut(3)
    assert made == epochs((1, 0), (3, 100))


def test_clamp_drops_epochs_beyond_log_end() -> None:
    made = EpochMap([EpochStart(1, BEGIN), EpochStart(3, at(100, 7)), EpochStart(4, at(200, 7))])
    made.clamp(at(199, 7))
    assert made.last_epoch == 3
    made.clamp(at(150, 6))
    assert list(made) == [EpochStart(1, BEGIN), EpochStart(3, at(100, 6))], "its log is of epoch 3 all the same"
    made.append(EpochStart(5, at(150, 6)))


def test_retention_keeps_start_of_first_epoch() -> None:
    made = epochs((1, 0), (3, 100), (4, 200))
    made.drop_before(at(150))
    assert made == epochs((3, 100), (4, 200))
    assert made.at(150) == EpochStart(3, at(100))
    assert made.at(50) is None


def test_thousands_of_epochs_fit_into_hello_frame() -> None:
    """Exceed RocketMQ's handshake, which takes 1,000 epochs."""
    many = EpochMap(EpochStart(number, at(number * 10, number)) for number in range(1, MAX_EPOCHS + 100))
    assert len(many) == MAX_EPOCHS
    hello = Hello("c", "g", 2, "i", "n", at(0), many)
    body = hello.encode()
    assert len(body) <= FrameKind.HELLO.max_body_bytes
    assert read_hello(body) == hello
    assert read_epochs(encode_epochs(many)) == many


entries = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=6)


def rising_epochs(steps: list[tuple[int, int]]) -> EpochMap:
    made = EpochMap()
    epoch = offset = 0
    for more, length in steps:
        epoch += more
        offset += length
        made.append(EpochStart(epoch, at(offset)))
    return made


@settings(max_examples=150)
@given(entries, entries, st.integers(0, 40), st.integers(0, 40))
def test_common_epoch_is_symmetric(one: list[tuple[int, int]], two: list[tuple[int, int]], a: int, b: int) -> None:
    first, second = rising_epochs(one), rising_epochs(two)
    first_end = at(max(a, first.last.start.offset if first.last else 0))
    second_end = at(max(b, second.last.start.offset if second.last else 0))
    common_epoch = first.common_epoch(first_end, second, second_end)
    assert common_epoch == second.common_epoch(second_end, first, first_end)
    if common_epoch is not None:
        assert first_end.covers(common_epoch.start)
        assert second_end.covers(common_epoch.start)
        # After the cut both agree up to the end, and a second comparison cuts nothing.
        first.cut(common_epoch.epoch)
        assert first.common_epoch(common_epoch.start, second, second_end) == common_epoch


def test_cut_removes_newer_epochs_from_all_files(tmp_path: Path) -> None:
    path, own = tmp_path / "epochFileCheckpoint", tmp_path / "raymq" / "epochs"
    file = EpochFile(path, own)
    epochs = EpochMap()
    for number in range(1, 5):
        epochs.append(EpochStart(number, at(100 * number, number)))
        file.save(epochs)
    for each in (path, own):
        cut(each, 2)
        cut(each, 2)
    assert [entry.epoch for entry in file.load()] == [1, 2]
    for each in (path, own):
        each.write_bytes(b"damaged")
    assert [entry.epoch for entry in file.load()] == [1, 2]
    cut(tmp_path / "none", 2)
