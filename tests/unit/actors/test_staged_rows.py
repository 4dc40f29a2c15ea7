"""Test that a repeated commit of staged rows stores each row once, even equal rows."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.records.record import encode
from raymq.storage.store_paths import StorePaths
from tests import staged_rows
from tests.unit.actors.bench import Bench

CHUNK = "part", 0


def encode_row(body: bytes, key: str | None) -> bytes:
    properties = b"" if key is None else f"UNIQ_KEY\x01{key}\x02".encode()
    return encode("t", 0, body, properties, born_timestamp_ms=1, born_host=("10.0.0.1", 5))


@pytest.mark.parametrize("key", [None, "same"])
@pytest.mark.parametrize("stored", [0, 4, 10])
def test_equal_rows_are_neither_lost_nor_duplicated(tmp_path: Path, key: str | None, stored: int) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = [encode_row(b"%d" % (number // 2), key) for number in range(10)]  # each twice
    sizes = np.array([len(each) for each in rows], np.int32)
    staged_rows.stage(bench.core.staging, "write", "part", 0, ("t", 0), memoryview(b"".join(rows)), sizes)
    bench.store.tables.staged.begin_attempt("write", CHUNK, bench.store.max_physical_offset)
    # The commit stopped after `stored` rows; another producer's message with the same key was appended.
    others = [encode_row(b"somebody else's", key), *rows[:stored]]
    bench.core.append("t", 0, memoryview(b"".join(others)), np.array([len(each) for each in others], np.int32))
    bench.crash()
    assert list(staged_rows.commit(bench.core.staging, "write", ["part"])) == [10 - stored]
    staged_rows.close(bench.core.staging, "write")
    assert sorted(bench.bodies("t")) == sorted([b"somebody else's", *(b"%d" % (number // 2) for number in range(10))])
    bench.store.close()


def stage(bench: Bench, transaction: str, rows: list[bytes]) -> None:
    sizes = np.array([len(each) for each in rows], np.int32)
    staged_rows.stage(bench.core.staging, transaction, "part", 0, ("t", 0), memoryview(b"".join(rows)), sizes)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("stored", [0, 4, 10])
def test_equal_rows_of_two_transactions_are_kept_apart(tmp_path: Path, stored: int, *, killed: bool) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = [encode_row(b"%d" % (number // 2), None) for number in range(10)]
    stage(bench, "mine", rows)
    stage(bench, "other", rows)
    table = bench.store.tables.staged
    table.begin_attempt("mine", CHUNK, bench.store.max_physical_offset)
    if stored:
        bench.core.append("t", 0, memoryview(b"".join(rows[:stored])), np.array([*map(len, rows[:stored])], np.int32))
    if killed:
        bench.crash()
    else:  # a disk error: the process continues
        table.fail_attempt("mine", CHUNK, bench.store.max_physical_offset)
    for _ in staged_rows.commit(bench.core.staging, "other", ["part"]):
        bench.crash()  # before its close, so that this commit is repeated, too
        break
    assert list(staged_rows.commit(bench.core.staging, "mine", ["part"])) == [10 - stored]
    assert list(staged_rows.commit(bench.core.staging, "other", ["part"])) == []
    staged_rows.close(bench.core.staging, "other")
    staged_rows.close(bench.core.staging, "mine")
    assert sorted(bench.bodies("t")) == sorted(2 * [b"%d" % (number // 2) for number in range(10)])
    bench.store.close()


def test_repeatedly_interrupted_commit_stores_each_row_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = [encode_row(b"%d" % (number // 2), None) for number in range(10)]
    stage(bench, "mine", rows)
    for part in (rows[:3], [], rows[3:7]):
        bench.store.tables.staged.begin_attempt("mine", CHUNK, bench.store.max_physical_offset)
        if part:
            bench.core.append("t", 0, memoryview(b"".join(part)), np.array([*map(len, part)], np.int32))
        bench.crash()
        bench.core.append("t", 0, memoryview(rows[9]), np.array([len(rows[9])], np.int32))  # an equal row
    assert list(staged_rows.commit(bench.core.staging, "mine", ["part"])) == [3]
    staged_rows.close(bench.core.staging, "mine")
    assert sorted(bench.bodies("t")) == sorted([*(b"%d" % (number // 2) for number in range(10)), b"4", b"4", b"4"])
    bench.store.close()


def test_refused_append_ends_its_attempt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = [encode_row(b"alike", None)] * 3
    stage(bench, "mine", rows)
    bench.store._writer._disk_checked_at = float("-inf")
    bench.store._writer._refuse_ratio = 0.0  # the disk is full
    with pytest.raises(StoreFull):
        list(staged_rows.commit(bench.core.staging, "mine", ["part"]))
    bench.store._writer._refuse_ratio = 1.1
    bench.store._writer._disk_checked_at = float("-inf")
    bench.core.append("t", 0, memoryview(b"".join(rows)), np.array([*map(len, rows)], np.int32))
    assert list(staged_rows.commit(bench.core.staging, "mine", ["part"])) == [3]
    staged_rows.close(bench.core.staging, "mine")
    assert len(bench.bodies("t")) == 6
    bench.store.close()


class FullState(FileCalls):
    """Stand in for a disk on which the state journal finds room only if the disk reserve is released."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "raymq" / "state"
        self._reserve = StorePaths(directory).disk_reserve

    def write(self, fd: int, content: bytes | memoryview) -> int:
        if self._reserve.exists() and Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(self._folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, content)


def test_end_of_attempt_is_recorded_on_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a repeated commit that takes later rows of others for its own."""
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = [encode_row(b"%d" % number, None) for number in range(10)]
    stage(bench, "mine", rows)
    staging, append = bench.core.staging, bench.core.staging._append
    full = FullState(tmp_path)
    assert StorePaths(tmp_path).disk_reserve.exists()

    def half(records: memoryview, sizes: npt.NDArray[np.int32], *topic_queues: tuple[str, int]) -> object:
        length = int(sizes[:5].sum())
        append(records[:length], sizes[:5], *topic_queues)
        context.enter_context(replaced(full))
        raise StoreFull("no room")

    with contextlib.ExitStack() as context, monkeypatch.context() as patch:
        patch.setattr(staging, "_append", half)
        with pytest.raises(StoreFull):
            list(staged_rows.commit(staging, "mine", ["part"]))
        patch.undo()
        bench.core.append("t", 0, memoryview(b"".join(rows)), np.array([*map(len, rows)], np.int32))
    assert list(staged_rows.commit(staging, "mine", ["part"])) == [5]
    staged_rows.close(staging, "mine")
    assert sorted(bench.bodies("t")) == sorted(2 * [b"%d" % number for number in range(10)])
    bench.store.close()


@pytest.mark.parametrize("dies_behind", [None, 0, 1, 2, 3])
def test_readers_see_all_or_no_rows_of_commit_across_crash(tmp_path: Path, dies_behind: int | None) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    before = encode_row(b"before", None)
    bench.core.append("t", 0, memoryview(before), np.array([len(before)], np.int32))
    for number in range(4):
        rows = [encode_row(b"%d %d" % (number, n), None) for n in range(5)]
        sizes = np.array([*map(len, rows)], np.int32)
        staged_rows.stage(
            bench.core.staging, "mine", "part", number, ("t", 0), memoryview(b"".join(rows)), sizes, "home"
        )
    bench.arrivals.clear()
    for number, _ in enumerate(staged_rows.commit(bench.core.staging, "mine", ["part"], 20)):
        assert bench.bodies("t") == [b"before"]
        assert bench.core.bounds("t", 0) == (0, 1)
        if number == dies_behind:
            bench.crash()
            break
    assert bench.bodies("t") == [b"before"]
    others = encode_row(b"somebody else's", None)
    bench.core.append("t", 0, memoryview(others), np.array([len(others)], np.int32))
    assert bench.bodies("t") == [b"before"]
    assert bench.arrivals == []
    added = sum(staged_rows.commit(bench.core.staging, "mine", ["part"], 20))
    assert added == (0 if dies_behind is None else 5 * (3 - dies_behind))
    staged_rows.close(bench.core.staging, "mine")
    assert len(bench.bodies("t")) == len(set(bench.bodies("t"))) == 22
    assert bench.arrivals == [("t", 0)]
    bench.crash()
    assert len(bench.bodies("t")) == 22
    assert list(bench.core.staging.in_doubt.due_notifications()) == ["home"]
    bench.store.close()


def test_begun_commit_hides_unwritten_queue_after_crash(tmp_path: Path) -> None:
    """Guard against a late read barrier that hides messages which readers have seen."""
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = encode_row(b"mine", None)
    staged_rows.stage(
        bench.core.staging, "mine", "part", 0, ("t", 0), memoryview(rows), np.array([len(rows)], np.int32), "home"
    )
    staged_rows.begin(bench.core.staging, "mine", ["part"], 1)
    bench.crash()
    others = encode_row(b"somebody else's", None)
    bench.core.append("t", 0, memoryview(others), np.array([len(others)], np.int32))
    assert bench.core.bounds("t", 0) == (0, 0)
    steps = staged_rows.commit(bench.core.staging, "mine", ["part"], 1)
    assert next(steps) == 1
    assert bench.core.bounds("t", 0) == (0, 0)
    bench.crash()
    assert sum(staged_rows.commit(bench.core.staging, "mine", ["part"], 1)) == 0
    staged_rows.close(bench.core.staging, "mine")
    assert bench.bodies("t") == [b"somebody else's", b"mine"]
    bench.store.close()


def test_commit_without_read_barrier_is_partly_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove that the tests above depend on the read barrier."""
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    for number in range(2):
        rows = [encode_row(b"%d %d" % (number, n), None) for n in range(5)]
        sizes = np.array([*map(len, rows)], np.int32)
        staged_rows.stage(bench.core.staging, "mine", "part", number, ("t", 0), memoryview(b"".join(rows)), sizes)
    monkeypatch.setattr(bench.store.read_barrier, "block", lambda *_, **__: {})
    assert [len(bench.bodies("t")) for _ in staged_rows.commit(bench.core.staging, "mine", ["part"])] == [5, 10]
    bench.store.close()


def test_bit_flip_in_decision_loses_no_row(tmp_path: Path) -> None:
    """Guard against a flipped bit in a part's name, which silently lost half the rows."""
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    for part in ("part1", "part2"):
        rows = [encode_row(b"%s %d" % (part.encode(), number), None) for number in range(5)]
        sizes = np.array([len(each) for each in rows], np.int32)
        staged_rows.stage(bench.core.staging, "write", part, 0, ("t", 0), memoryview(b"".join(rows)), sizes)
    assert next(staged_rows.commit(bench.core.staging, "write", ["part1", "part2"], 10)) == 5
    path = max((bench.directory / "raymq" / "state").glob("journal-*"))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"part2") + 4] ^= 1  # in the second copy of the decision
    path.write_bytes(content)
    bench.crash()
    list(staged_rows.commit(bench.core.staging, "write", ["part1", "part2"], 10))
    staged_rows.close(bench.core.staging, "write")
    assert len(bench.bodies("t")) == 10
    bench.store.close()
