"""Test the quarantine file: the newest entries are kept, and dropping older ones is cheap."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables import quarantine_file
from raymq.storage.tables.quarantine_file import QuarantineEntry, QuarantineFile
from tests.faulty_calls import FaultyCalls


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_file, "KEPT", 10)


def note(number: int) -> QuarantineEntry:
    return QuarantineEntry("retry", "g", "t", 0, number, number, "", "no room", 5)


def offsets(notes: QuarantineFile) -> list[int]:
    return [each.offset for each in notes.notes()]


def test_writes_do_not_grow_with_the_entries(tmp_path: Path) -> None:
    # Every 10,000 entries all of them used to be rewritten, which blocked the broker for 0.4 s.
    path = tmp_path / "raymq" / "set_aside.jsonl"
    path.parent.mkdir()
    notes = QuarantineFile(path)
    for number in range(95):
        calls = FaultyCalls()
        with replaced(calls):
            assert notes.put([note(number)]) == [note(number)]
        assert calls.counts["write"] == 1
        assert calls.counts["fsync"] + calls.counts["fdatasync"] == 0
        assert offsets(QuarantineFile(path)) == offsets(notes) == list(range(max(0, number - 9), number + 1))
    assert sum(len(each.read_bytes().splitlines()) for each in path.parent.iterdir()) <= 20
    calls = FaultyCalls()
    with replaced(calls):
        notes.sync()
        notes.sync()
    assert calls.counts["fdatasync"] == 2
    assert notes.counts["retry"] == 95


def test_failed_rotation_keeps_the_entries(tmp_path: Path) -> None:
    notes = QuarantineFile(tmp_path / "set_aside.jsonl")
    notes.put(map(note, range(10)))
    with replaced(FaultyCalls("rename", 1, 5)):
        notes.put([note(10)])
    notes.put([note(11)])
    assert offsets(QuarantineFile(tmp_path / "set_aside.jsonl")) == list(range(2, 12))


def test_partial_write_raises_store_full(tmp_path: Path) -> None:
    notes = QuarantineFile(tmp_path / "set_aside.jsonl")
    with replaced(FaultyCalls("short_write", 1, 28)), pytest.raises(StoreFull):
        notes.put([note(1)])
    notes.put([note(1)])
    assert offsets(QuarantineFile(tmp_path / "set_aside.jsonl")) == [1]
