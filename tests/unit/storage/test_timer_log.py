"""Test the timer log: pending entries, expiry, and recovery from crashes and full disks."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import FormatTooNew
from raymq.storage.files import file_calls
from raymq.storage.files.file_calls import FileCalls
from raymq.storage.timers import timer_log
from raymq.storage.timers.expiry_watermark import ExpiryWatermark
from raymq.storage.timers.timer_entry import ENTRY, HOUR_MS, MIN_KEY, NO_ENTRIES, EntryKind, key_of
from raymq.storage.timers.timer_run import TimerRun
from tests.store_records import flip_byte
from tests.unit.storage.timer_logs import EVER_MS, HOUR, START_MS, checkpoint, entry, offsets, open_timer_log, waiting


@pytest.mark.parametrize("in_runs", [False, True])
def test_pending_timers_are_ordered_by_due_time(tmp_path: Path, in_runs: bool, request: pytest.FixtureRequest) -> None:
    if in_runs:
        request.getfixturevalue("runs_at_once")
    log = open_timer_log(tmp_path)
    for number, part in enumerate(
        (
            np.concatenate([entry(START_MS + 50, 0), entry(START_MS + 10, 2), entry(START_MS + 10, 1)]),
            entry(START_MS + HOUR_MS, 3),
            entry(START_MS + 10, 2, kind=EntryKind.DELIVERED),
            entry(START_MS + 50, 0),  # appended twice, as after a crash
        )
    ):
        log.append(part)
        checkpoint(log, number + 1)
    for each in (log, open_timer_log(tmp_path)):
        assert waiting(each) == [1, 0, 3]
        assert waiting(each, START_MS + 50) == [1]
        assert waiting(each, begin_ms=START_MS + 51) == [3]
        assert sorted(offsets(each.find(START_MS + 10, 7))) == [1, 2, 2]
        assert offsets(each.find(START_MS + 10, 8)) == []
        assert each.ended_between(0, 9).tolist() == [2]
        assert each.ended_between(3, 9).tolist() == []
    assert bool(log.runs) == in_runs


def test_entries_in_any_runs_equal_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Runs, the next run and the journal together equal a plain table.
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 20)
    dice = random.Random(13)
    log = open_timer_log(tmp_path)
    waits: dict[int, tuple[int, int]] = {}
    ended: set[int] = set()
    held = None
    for turn in range(150):
        parts = []
        for offset in range(turn * 10, turn * 10 + dice.randint(0, 10)):
            due, key = START_MS + dice.choice([5, 5, 5, dice.randint(0, 900)]), dice.randint(-3, 3)
            waits[offset] = due, key
            parts.append(entry(due, offset, turn, key=key))
        for offset in dice.sample(sorted(waits), min(len(waits), 3)):
            ended.add(offset)
            parts.append(
                entry(
                    waits[offset][0],
                    offset,
                    turn,
                    dice.choice([EntryKind.DELIVERED, EntryKind.MOVED]),
                    waits[offset][1],
                )
            )
        log.append(np.concatenate([NO_ENTRIES, *parts]))
        log.enqueued = turn
        held = log.checkpoint(turn + 1) or held  # some checkpoints run late, or never
        if dice.random() < 0.5 and held is not None:
            held()
        if dice.random() < 0.1:
            log.close()
            log = open_timer_log(tmp_path)
    for each in (log, open_timer_log(tmp_path)):
        alive = {offset: mark for offset, mark in waits.items() if offset not in ended}
        for most in (1 << 20, 3):
            assert sorted(waiting(each, most=most)) == sorted(alive)
            within = [o for o, (due, _) in alive.items() if START_MS + 100 <= due < START_MS + 300]
            assert sorted(waiting(each, START_MS + 300, START_MS + 100, most)) == sorted(within)
        assert set(each.ended_between(100, 900).tolist()) == {o for o in ended if 100 <= o < 900}
        for mark in {waits[offset] for offset in dice.sample(sorted(waits), 20)}:
            assert set(offsets(each.find(*mark))) == {o for o, other in waits.items() if other == mark}


@pytest.mark.usefixtures("runs_at_once")
def test_timer_is_found_with_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fault 13.26: a recall read all entries of its hour, three times, also if all are due at one millisecond.
    log = open_timer_log(tmp_path)
    count = 50_000
    entries = np.concatenate([entry(START_MS, 0)] * count)
    entries["queue_offset"] = np.arange(count)
    entries["key"] = np.arange(count) * 7
    for number in range(3):
        log.append(entries[number::3])
        checkpoint(log, number + 1)
    looked = 0
    mark = TimerRun.mark

    def counting(run: TimerRun, number: int) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return mark(run, number)

    monkeypatch.setattr(TimerRun, "mark", counting)
    assert offsets(log.find(START_MS, 70_000)) == [10_000]
    assert looked <= 3 * 20


@pytest.mark.usefixtures("runs_at_once")
def test_due_timers_are_read_without_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_timer_log(tmp_path)
    entries = np.concatenate([entry(START_MS, 0)] * 50_000)
    entries["queue_offset"] = np.arange(len(entries))
    entries["due_ms"] = START_MS + np.arange(len(entries))
    log.append(entries)
    checkpoint(log, 1)
    taken = []
    part = TimerRun.part
    monkeypatch.setattr(TimerRun, "part", lambda run, *which: taken.append(which) or part(run, *which))
    found, following = log.waiting((START_MS + 100, MIN_KEY), START_MS + 200, 1_000)
    assert (offsets(found), following) == (list(range(100, 200)), (START_MS + 200, MIN_KEY))
    found, following = log.waiting((START_MS + 100, MIN_KEY), START_MS + 20_000, 1_000)
    assert len(found) == 1_000
    assert following == (START_MS + 1_100, 7)
    assert taken == [(100, 200), (100, 1_100)]


@pytest.mark.parametrize("keys", [1, 3, 500])
def test_a_limit_holds_for_entries_of_the_journal_too(tmp_path: Path, keys: int) -> None:
    log = open_timer_log(tmp_path)
    for offset in range(500):
        log.append(entry(START_MS + offset * 7 % 500 // 100, offset, key=offset % keys))
    begin, found, most = (0, MIN_KEY), [], 0
    while begin < (EVER_MS, MIN_KEY):
        part, following = log.waiting(begin, EVER_MS, 10)
        assert all(begin <= (due_ms, key) < following for due_ms, key in part[["due_ms", "key"]].tolist())
        found, most, begin = found + offsets(part), max(most, len(part)), following
    assert sorted(found) == list(range(500))
    assert most == {1: 100, 3: 34, 500: 10}[keys], "those with the same time and key stay together"


class CallsBelow(FileCalls):
    """Count calls for files below a folder; stores of other tests may run as well."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counts: Counter[str] = Counter()

    def open(self, path: Path, flags: int) -> int:
        self.counts["open"] += path.is_relative_to(self._folder)
        return super().open(path, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        self._count("write", fd)
        return super().write(fd, content)

    def fsync(self, fd: int) -> None:
        self._count("fsync", fd)
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._count("fdatasync", fd)
        super().fdatasync(fd)

    def _count(self, call: str, fd: int) -> None:
        self.counts[call] += Path(f"/proc/self/fd/{fd}").resolve().is_relative_to(self._folder)


@pytest.mark.parametrize("hours", [1, 960])
def test_checkpoint_cost_does_not_grow_with_due_hours(tmp_path: Path, hours: int) -> None:
    # Fault 13.26: a checkpoint opened and synced a file for each hour, and an append opened them, too.
    log = open_timer_log(tmp_path)
    calls = CallsBelow(tmp_path)
    with file_calls.replaced(calls):
        log.append(np.concatenate([entry(START_MS + hour * HOUR_MS, hour) for hour in range(hours)]))
        assert (calls.counts["open"], calls.counts["write"]) == (1, 1)
        checkpoint(log, 10)
    assert calls.counts["fdatasync"] + calls.counts["fsync"] <= 4
    assert len(list(tmp_path.iterdir())) == 2


def test_number_of_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 4)
    log = open_timer_log(tmp_path)
    most = 0
    for number in range(600):
        log.append(np.concatenate([entry(START_MS + number * 1_000 + n, number * 4 + n) for n in range(4)]))
        calls = CallsBelow(tmp_path)
        with file_calls.replaced(calls):
            checkpoint(log, number + 1)
        assert calls.counts["fdatasync"] <= 3
        most = max(most, len(log.runs))
    assert most <= 20
    assert waiting(log) == list(range(2_400))
    assert len(list(tmp_path.glob("run.*"))) == len(log.runs)
    assert len(list(tmp_path.glob("journal.*"))) <= 1


@pytest.mark.usefixtures("runs_at_once")
def test_expired_timers_are_removed(tmp_path: Path) -> None:
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(START_MS + n, n) for n in range(10)]))
    log.append(np.concatenate([entry(START_MS + n, n, kind=EntryKind.DELIVERED) for n in range(10)]))
    log.append(entry(START_MS + HOUR_MS, 10))
    checkpoint(log, 1)
    log.append(entry(START_MS + 5, 11))
    checkpoint(log, 2, ExpiryWatermark(START_MS + HOUR_MS, 11, 1))
    assert waiting(log) == [11, 10], "what came since then is kept"
    assert sum(map(len, log.runs)) == 2
    log.append(entry(START_MS + 5, 11, kind=EntryKind.DELIVERED))
    log.append(entry(START_MS + HOUR_MS, 10, kind=EntryKind.DELIVERED))
    checkpoint(log, 3)
    log.enqueued = 12
    checkpoint(log, 4, ExpiryWatermark(EVER_MS, 12, 3))
    assert (list(log.runs), waiting(log)) == ([], [])
    assert waiting(open_timer_log(tmp_path)) == []


def test_checkpoint_is_read_after_reopen(tmp_path: Path) -> None:
    log = open_timer_log(tmp_path)
    assert (log.enqueued, log.log_end) == (0, 0)
    assert log.checkpoint(0) is None
    log.append(entry(START_MS, 0))
    log.enqueued = 1
    write = log.checkpoint(500, begin_ms=START_MS - 9)
    assert write is not None
    log.append(entry(START_MS + HOUR_MS, 1))
    write()
    assert log.checkpoint(500) is None
    again = open_timer_log(tmp_path)
    assert (again.enqueued, again.log_end, again.begin_ms) == (1, 500, START_MS - 9)
    lost = open_timer_log(tmp_path, log_end=300)
    assert (lost.log_end, lost.begin_ms) == (300, 0)


def test_begin_precedes_timers_appended_after_a_checkpoint(tmp_path: Path) -> None:
    # The clock may have been set back.
    log = open_timer_log(tmp_path)
    log.enqueued = 1
    write = log.checkpoint(500, begin_ms=START_MS)
    assert write is not None
    write()
    log.append(entry(START_MS - 1_000, 1))
    assert open_timer_log(tmp_path).begin_ms == START_MS - 1_000


def test_newer_format_version_is_refused(tmp_path: Path) -> None:
    open_timer_log(tmp_path)
    (tmp_path / "state.json").write_text('{"version":4}')
    with pytest.raises(FormatTooNew):
        open_timer_log(tmp_path)


@pytest.mark.usefixtures("runs_at_once")
@pytest.mark.parametrize(
    "damage", ["{}", "[]", '{"version":3,"position":{}}', "x", "another number", "missing", "short", "flipped"]
)
def test_damaged_timer_log_restarts_from_the_first_message(tmp_path: Path, damage: str) -> None:
    # Nothing of a damaged log is used: neither its position nor its ended timers.
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(START_MS, 0), entry(START_MS, 1)]))
    log.enqueued = 2
    checkpoint(log, 1)
    log.append(entry(START_MS, 0, 5, EntryKind.DELIVERED))
    log.close()
    [path] = tmp_path.glob("run.*")
    state = tmp_path / "state.json"
    if damage == "another number":
        state.write_text(state.read_text().replace('"enqueued": 2', '"enqueued": 1'))
    elif damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "flipped":
        flip_byte(path, 50)
    else:
        state.write_text(damage)
    for _ in range(2):
        log = open_timer_log(tmp_path)
        assert (log.enqueued, log.log_end, log.begin_ms, log.expired_before_ms) == (0, 0, 0, 0)
        assert waiting(log) == []
        assert not list(tmp_path.glob("run.*"))
        log.append(NO_ENTRIES)
    log.append(entry(START_MS, 7))
    log.enqueued = 8
    checkpoint(log, 20)
    assert waiting(open_timer_log(tmp_path)) == [7]


@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("checksums", [True, False])
def test_files_of_version_2_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: bool, checksums: bool
) -> None:
    # Journals of version 2 had entries alone. Entries behind the length in the state are appended again.
    with monkeypatch.context() as patches:
        patches.setattr(timer_log, "FOLD_ENTRIES", 1)
        log = open_timer_log(tmp_path)
        log.append(entry(START_MS + 5, 0))
        log.enqueued = 2
        checkpoint(log, 1)
        log.close()
    state = tmp_path / "state.json"
    fields = json.loads(state.read_text())
    fields.pop("crc")
    number = fields["journal"]
    known = np.concatenate([entry(START_MS, 1), entry(START_MS + 5, 0, 9, EntryKind.DELIVERED)]).astype(ENTRY).tobytes()
    content = known + entry(START_MS, 2).tobytes() + b"half an entry"
    (tmp_path / f"journal.{number:010d}").write_bytes(content)
    fields |= {
        "version": 2,
        "lengths": {str(number): len(known)},
        "position": {**fields["position"], "begin": START_MS + 3},
    }
    if not lengths:
        del fields["lengths"]
    if checksums:
        fields["crc"] = zlib.crc32(json.dumps(fields).encode())
    else:
        fields["runs"] = [run[:4] for run in fields["runs"]]
    state.write_text(json.dumps(fields))
    for _ in range(2):
        log = open_timer_log(tmp_path)
        assert (log.enqueued, log.begin_ms) == (2, START_MS)
        assert waiting(log) == ([1] if lengths else [1, 2])
        assert json.loads(state.read_text())["version"] == 3
        log.close()


def test_files_of_version_1_are_converted(tmp_path: Path) -> None:
    # Version 1 had one file for each hour, as docs/internals/format.md describes.
    one = np.concatenate(
        [entry(START_MS + 9, 1, 50), entry(START_MS + 5, 0, 10), entry(START_MS + 5, 0, 90, EntryKind.DELIVERED)]
    )
    (tmp_path / f"{HOUR:08d}").write_bytes(one.astype(ENTRY).tobytes() + b"half an entry")
    (tmp_path / f"{HOUR + 7:08d}").write_bytes(entry(START_MS + 7 * HOUR_MS, 2, 70).tobytes())
    (tmp_path / "state.json").write_text('{"enqueued": 3, "logEnd": 95}')
    for _ in range(2):
        log = open_timer_log(tmp_path)
        assert (log.enqueued, log.log_end) == (3, 95)
        assert waiting(log) == [1, 2]
        assert log.find(START_MS + 5, 7)["kind"].tolist() == [EntryKind.WAITS, EntryKind.DELIVERED]
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "run.0000000001"}


def test_timer_files_have_the_documented_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 2)
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(0x0203, 1, 0x20), entry(0x0102, 0, 0x10, key=-1)]))
    log.append(entry(0x0203, 1, 0x30, EntryKind.DELIVERED))
    log.enqueued = 2
    checkpoint(log, 0x40)
    log.append(entry(0x0405, 2, 0x50))

    def row(due: int, offset: int, place: int, key: str, kind: int) -> bytes:
        return bytes.fromhex(f"{due:016x}{offset:016x}{place:016x}{key}00000064{kind:08x}")

    waits = row(0x0102, 0, 0x10, "f" * 16, 1) + row(0x0203, 1, 0x20, "0000000000000007", 1)
    [run] = tmp_path.glob("run.*")
    assert run.read_bytes() == waits + row(0x0203, 1, 0x30, "0000000000000007", 2) + bytes.fromhex("0000000000000001")
    [journal] = tmp_path.glob("journal.*")
    count, appended = (1).to_bytes(4, "big"), row(0x0405, 2, 0x50, "0000000000000007", 1)
    assert journal.read_bytes() == count + zlib.crc32(count + appended).to_bytes(4, "big") + appended
    fields = json.loads((tmp_path / "state.json").read_bytes())
    crc = fields.pop("crc")
    assert crc == zlib.crc32(json.dumps(fields).encode())
    assert fields == {
        "version": 3,
        "position": {"enqueued": 2, "logEnd": 0x40, "begin": 0, "over": 0, "overs": []},
        "journal": int(journal.name.removeprefix("journal.")),
        "lengths": {journal.name.removeprefix("journal.").lstrip("0"): 0},
        "runs": [[int(run.name.removeprefix("run.")), 3, 1, 0x30, zlib.crc32(run.read_bytes())]],
    }


def test_keys_of_messages_differ() -> None:
    assert len({key_of(f"t_{n}") for n in range(1_000)}) == 1_000
    assert -(1 << 63) <= key_of("t_1") < 1 << 63
