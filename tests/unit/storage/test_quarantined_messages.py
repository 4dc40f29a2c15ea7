"""Test the quarantined messages: the newest notes are kept, over restarts and snapshots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from raymq.cluster.cli import main_group
from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.files.json_file import DECODE_ERRORS
from raymq.storage.store import Store
from raymq.storage.tables import quarantined_messages
from raymq.storage.tables.quarantined_messages import QuarantinedMessages, QuarantineEntry
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table, open_tables
from tests.store_records import SMALL


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantined_messages, "KEPT", 10)
    monkeypatch.setattr(quarantined_messages, "_EVENT_NOTES", 4)


def note(number: int) -> QuarantineEntry:
    return QuarantineEntry("retry", "g", "t", 0, number, number, "", "no room", 5)


def offsets(notes: QuarantinedMessages) -> list[int]:
    return [each.offset for each in notes.notes()]


def test_newest_notes_are_kept_over_restarts(tmp_path: Path) -> None:
    # Every 10,000 notes all of them used to be rewritten, which blocked the broker for 0.4 s.
    notes = open_table(tmp_path, QuarantinedMessages())
    for number in range(35):
        calls = FaultyCalls()
        with replaced(calls):
            assert notes.put([note(number)]) == [note(number)]
            assert notes.put([note(number)]) == []
        assert (calls.counts["write"], calls.counts["fdatasync"]) == (1, 0)
        again = open_table(tmp_path, QuarantinedMessages(), writable=False)
        assert offsets(again) == offsets(notes) == list(range(max(0, number - 9), number + 1))
    assert notes.counts["retry"] == 35


def test_notes_after_a_snapshot_replayed_over_it_are_the_same() -> None:
    # A snapshot may have the effect of events that are replayed over it.
    whole, of_snapshot = QuarantinedMessages(), QuarantinedMessages()
    events = [([[*map(str, ("retry", "g", "t", 0, n, n, "", "no room", 5))]],) for n in range(25)]
    for fields in events:
        whole.apply(fields)
    for fields in [*whole.snapshot(), *events[3:]]:
        of_snapshot.apply(fields)
    assert of_snapshot.notes() == whole.notes()


def test_snapshot_keeps_all_notes_in_order(tmp_path: Path) -> None:
    notes = QuarantinedMessages()
    journal = open_tables(tmp_path, notes)
    notes.put(map(note, range(9)))
    journal.close(compact=True)
    assert offsets(open_table(tmp_path, QuarantinedMessages())) == list(range(9))


def test_partial_write_raises_store_full(tmp_path: Path) -> None:
    notes = open_table(tmp_path, QuarantinedMessages())
    with replaced(FaultyCalls("short_write", 1, 28)), pytest.raises(StoreFull):
        notes.put([note(1)])
    assert offsets(notes) == []
    notes.put([note(1)])
    assert offsets(open_table(tmp_path, QuarantinedMessages())) == [1]


def test_text_with_half_a_character_is_stored(tmp_path: Path) -> None:
    notes = open_table(tmp_path, QuarantinedMessages())
    odd = QuarantineEntry("retry", "g\ud800", "t\udfff", 0, 1, 2, "\ud800", "\udc00", 5)
    assert len(notes.put([odd])) == 1
    assert notes.put([odd]) == []
    (kept,) = open_table(tmp_path, QuarantinedMessages()).notes()
    assert kept.owner == "g\\ud800"


@pytest.mark.parametrize("fields", [(), (7,), ([[1]],), ([["a", "b", "c", "x", 1, 2, "", "", 3]],), ([[]],)])
def test_event_that_is_no_note_is_refused(fields: tuple[object, ...]) -> None:
    notes = QuarantinedMessages()
    with pytest.raises(DECODE_ERRORS):
        notes.apply(fields)
    assert notes.notes() == []


def test_command_lists_the_notes_of_a_running_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        store.tables.quarantined.put(map(note, range(2)))
        ended = CliRunner().invoke(main_group, ["store", "quarantined", str(tmp_path / "s"), "--json"])
    assert ended.exit_code == 0
    assert [(each["owner"], each["offset"]) for each in json.loads(ended.stdout)] == [("g", 0), ("g", 1)]
    assert CliRunner().invoke(main_group, ["store", "quarantined", str(tmp_path / "none")]).exit_code != 0
