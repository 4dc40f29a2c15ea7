"""Test the conversion of format 2, also over kills and full disks.

The directories in tests/fixtures/format_2 were written by the last version with that format; one was closed, the other
one was killed.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from raymq.storage import checkpointer, store_parts
from raymq.storage.directory_format import CURRENT_FORMAT, read_format
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import NAMES
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import replaced
from raymq.storage.former_files import former_format
from raymq.storage.journal.journal_frames import decode_frames, encode_frame
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.quarantined_messages import QuarantineEntry
from tests.faulty_calls import FaultyCalls, UnsyncedCalls
from tests.store_records import SMALL, bodies
from tests.unit.storage.journal.test_format_1 import killed_at

CONFIG = replace(SMALL, delay_levels="1m 5m", flush_interval_ms=3_600_000, index_slots=100, index_entries=1_000)
FIXTURES = ("closed", "killed", "format_1")


def content_of(store: Store) -> dict[str, Any]:
    """Return what the store has of what was in files of format 2."""
    tables = store.tables
    epochs = tables.recovery_epochs
    return {
        "epochs.json": (epochs.current, epochs.election, next((at for _, at in reversed(epochs._cuts)), None)),
        "counted_time.json": tables.counted_time.seconds,
        "set_aside.jsonl": tables.quarantined.notes(),
        "settings.json": (tables.settings.version.counter, tables.settings.settings),
        "delay_levels.json": tables.delay_levels.saved,
        "producers.journal": (list(tables.producer_states.rows()), tables.producer_states.position),
    }


@pytest.fixture(autouse=True)
def same_boot(monkeypatch: pytest.MonkeyPatch, former: Path) -> Iterator[None]:
    """Open the directories on the machine that wrote them."""
    state = CheckpointState.load(StorePaths(former).state)
    assert state is not None
    for module in (store_parts, checkpointer):
        monkeypatch.setattr(module, "boot_id", lambda: state.boot)
    with replaced(UnsyncedCalls()):
        yield


def unpack(repository: Path, name: str, folder: Path) -> Path:
    with tarfile.open(repository / "tests" / "fixtures" / f"{name}.tar.xz") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(params=FIXTURES)
def former(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Path:
    """Unpack a directory of format 2, or one of format 1 with the files of format 2."""
    folder = tmp_path / "former"
    if request.param != "format_1":
        return unpack(repository, f"format_2/{request.param}", folder)
    unpack(repository, "format_1/killed", folder)
    other = unpack(repository, "format_2/killed", tmp_path / "other")
    for path in former_files(other):
        shutil.copy(path, folder / "raymq")
    return folder


def copied(former: Path, name: str) -> Path:
    return Path(shutil.copytree(former, former.with_name(name)))


def former_files(directory: Path) -> list[Path]:
    return [path for path in sorted((directory / "raymq").iterdir()) if former_format(path.name) == 2]


def producers_in(path: Path) -> tuple[list[Any], int]:
    """Return the newest lane and position in the producers' journal."""
    entries = decode_frames(path.read_bytes()).entries
    lanes = [msgpack.unpackb(value) for kind, value in entries if kind == "l"]
    positions = [value for kind, value in entries if kind == "p"]
    assert len(lanes) == len(positions) == 2
    assert lanes[0] != lanes[1]
    return lanes[-1], positions[-1]


def written(former: Path) -> dict[str, Any]:
    """Return what the files say."""
    own = former / "raymq"
    epochs = json_file.load(own / "epochs.json")
    return {
        "epochs.json": (epochs["epoch"], 3, 102),
        "counted_time.json": 90.0,
        "set_aside.jsonl": [
            QuarantineEntry("retry", "g", "orders", 0, number, 7 * number, "id", "no room", 5) for number in range(3)
        ],
        "settings.json": (2, {"fileReservedTime": "96", "note": "kept"}),
        "delay_levels.json": [(0, "1s 5s"), (102, "1m 5m")],
        "producers.journal": producers_in(own / "producers.journal"),
    }


def check_converted(directory: Path, expected: dict[str, Any]) -> None:
    """Check that a start, and another one, find what was written, and no former file is left."""
    for _ in range(2):
        with Store.open(directory, CONFIG) as store:
            assert content_of(store) == expected
            assert store.recovery.corruption == []
        assert [path.name for path in (directory / "raymq").iterdir() if former_format(path.name)] == []
        assert read_format(directory).number == CURRENT_FORMAT
    with Store.open(directory, CONFIG, read_only=True) as store:
        assert content_of(store) == expected


def test_files_of_format_2_become_tables(former: Path) -> None:
    assert {path.name.removesuffix(".bak") for path in former_files(former)} == written(former).keys()
    check_converted(former, written(former))


def test_read_only_store_of_format_2_changes_no_file(former: Path) -> None:
    def files() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in former.rglob("*")}

    before, expected = files(), written(former)
    with Store.open(former, CONFIG, read_only=True) as store:
        assert content_of(store) == expected
    assert files() == before


STEPS = [name for name in NAMES if name.startswith(("format.", "state.", "replace."))]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("step", STEPS)
def test_killed_conversion_loses_and_doubles_nothing(former: Path, step: str) -> None:
    times, expected = 1, written(former)
    while killed_at(f"{step}:{times}", directory := copied(former, str(times)), CONFIG):
        with Store.open(directory, CONFIG, read_only=True) as store:
            assert content_of(store) == expected
        check_converted(directory, expected)
        shutil.rmtree(directory)
        times += 1


def test_conversion_killed_at_each_removal_is_finished(former: Path) -> None:
    expected, count = written(former), len(former_files(former))
    kills = 0
    while killed_at("format.before_removal:2", former, CONFIG):
        kills += 1
    assert kills >= count - 1
    check_converted(former, expected)


def test_journal_with_epochs_is_newer_than_former_files(former: Path) -> None:
    # A replica has its former files until it is master; by then it has its master's tables.
    before = copied(former, "before")
    with Store.open(former, CONFIG) as store:
        store.tables.recovery_epochs.cut(50, election=4)
        expected = content_of(store)
    for path in former_files(before):
        shutil.copy(path, former / "raymq")
    check_converted(former, expected)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", ["open", "write", "short_write", "rename", "fdatasync", "unlink"])
def test_conversion_on_a_bad_disk_loses_nothing(former: Path, kind: str) -> None:
    counted, expected = FaultyCalls(real=UnsyncedCalls()), written(former)
    with replaced(counted):
        Store.open(copied(former, "counted"), CONFIG).close()
    error = errno.EIO if kind in ("fdatasync", "unlink") else errno.ENOSPC
    for nth in range(1, counted.counts["write" if kind == "short_write" else kind] + 1):
        directory = copied(former, str(nth))
        failing = FaultyCalls(kind, nth, error, lasting=error == errno.ENOSPC, real=UnsyncedCalls())
        with replaced(failing), contextlib.suppress(StoreError):
            Store.open(directory, CONFIG).close()
        # A failed sync ends a store as a crash does, with a new epoch.
        if failing.failed and kind == "fdatasync":
            with Store.open(directory, CONFIG) as store:
                assert content_of(store) | {"epochs.json": 0} == expected | {"epochs.json": 0}
        else:
            check_converted(directory, expected)
        shutil.rmtree(directory)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"[" * 9_999, b'{"epoch":1e999,"cuts":[]}'])
@pytest.mark.parametrize("name", ["epochs.json", "counted_time.json", "set_aside.jsonl", "delay_levels.json"])
def test_damaged_file_of_format_2_loses_only_itself(former: Path, name: str, content: bytes) -> None:
    expected = written(former)
    (former / "raymq" / f"{name}.bak").unlink(missing_ok=True)
    (former / "raymq" / name).write_bytes(content)
    with Store.open(former, CONFIG) as store:
        found = content_of(store)
    assert found[name] != expected[name]
    assert found | {name: 0} == expected | {name: 0}
    check_converted(former, found)


@pytest.mark.parametrize("left", [None, b'{"epoch":7,"first":6,"cuts":[[5,400]]}', b"{"])
def test_epoch_is_never_reused_after_file_damage(former: Path, left: bytes | None) -> None:
    # A reader of a forgotten epoch reads again, also if the log was truncated since.
    path = former / "raymq" / "epochs.json"
    known = json_file.load(path)["epoch"]
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with Store.open(former, CONFIG) as store:
        assert store.epoch not in (known, 5, 6, 7)
        assert [store.tables.recovery_epochs.truncated_since(epoch) for epoch in (known, 7)] == [0, 0]


def test_epochs_of_the_former_file_format_are_read(former: Path) -> None:
    (former / "raymq" / "epochs.json").write_text('{"epoch":3,"cuts":[[2,500],[3,700]]}')
    with Store.open(former, CONFIG) as store:
        epochs = store.tables.recovery_epochs
        assert [epochs.truncated_since(epoch) for epoch in (1, 2, 3, 4)] == [500, 700, None, 0]


def test_replica_of_format_2_is_converted(former: Path) -> None:
    """Its numbers are those of no other broker, so that it takes a copy of its master's journal."""
    expected = written(former)
    with Store.open(former, CONFIG, is_replica=True) as store:
        assert store.journal.last > 1 << 60
    assert former_files(former) == []
    check_converted(former, expected)


@pytest.mark.parametrize("is_replica", [True, False])
def test_half_received_state_of_a_replica_is_dropped(former: Path, is_replica: bool) -> None:
    (former / "raymq" / "state_snapshot").write_bytes(b"[]")
    with Store.open(former, CONFIG, is_replica=is_replica) as store:
        assert store.journal.last > 1 << 60
    assert former_files(former) == []


def test_messages_are_kept(former: Path) -> None:
    with Store.open(former, CONFIG) as store:
        assert bodies(store, queue_id=0)[:1] in ([b"first"], [b"0"])


def test_older_notes_and_broken_lines_of_format_2(former: Path) -> None:
    path = former / "raymq" / "set_aside.jsonl"
    first, *others = path.read_bytes().splitlines()
    path.with_name("set_aside.jsonl.older").write_bytes(first.replace(b'"g"', b'"older"') + b"\n" + first[:20])
    path.write_bytes(b"\n".join([first, b"{}", b"[]", b"\xff", *others, b'{"duty'[:5]]))
    with Store.open(former, CONFIG) as store:
        assert [note.owner for note in store.tables.quarantined.notes()] == ["older", "g", "g", "g"]
    assert former_files(former) == []


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"settings":{"fileReservedTime":"4x"}}'])
def test_spare_copy_of_settings_is_used(former: Path, content: bytes | None) -> None:
    expected = written(former) | {"settings.json": (1, {"fileReservedTime": "48", "note": "kept"})}
    path = former / "raymq" / "settings.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    check_converted(former, expected)


def test_spare_copy_of_delay_levels_is_used(former: Path) -> None:
    (former / "raymq" / "delay_levels.json").write_bytes(b"{")
    with Store.open(former, CONFIG, read_only=True) as store:
        assert store.delay_level_history.saved[0] == (0, "1s 5s")


@pytest.mark.parametrize("damaged", [0, 1, 2, 3])
def test_damaged_producers_journal_leaves_the_rest_to_the_log(former: Path, damaged: int) -> None:
    # Entries behind the damage do not say to which position of the log they belong.
    path = former / "raymq" / "producers.journal"
    frames = [encode_frame(entry) for entry in decode_frames(path.read_bytes()).entries]
    first = decode_frames(b"".join(frames[:damaged])).entries
    frames[damaged] = frames[damaged][:-1] + bytes([frames[damaged][-1] ^ 1])
    path.write_bytes(b"".join(frames))
    with Store.open(former, CONFIG) as store:
        states = store.tables.producer_states
        assert states.position == max((value for kind, value in first if kind == "p"), default=0)
        assert len(list(states.rows())) == (damaged > 0)
