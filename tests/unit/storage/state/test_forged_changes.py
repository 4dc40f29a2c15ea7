"""Test that forged or unfitting changes from a master raise typed errors and change nothing."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from raymq.storage.errors import InvalidInput, StateMismatch
from raymq.storage.state.state_changes import FileChange, FileOperation, StateChange, decode_change
from raymq.storage.state.state_files import is_backup_state, is_state
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.state.state_snapshot import read_part

#: Paths of a broker's own files, and paths outside the state.
NOT_STATE = [
    *("commitlog/00000000000000000000", "consumequeue/t/0/x", "index/x", "checkpoint", "abort", "lock", "config"),
    "raymq",
    *("epochFileCheckpoint", "raymq/state.json", "raymq/state.json.tmp", "raymq/epochs", "raymq/epochs.bak.tmp"),
    *("raymq/broker.json", "raymq/replica.json", "raymq/healthy", "raymq/ballast", "raymq/cut.json"),
    *("raymq/clock.json", "raymq/timers", "raymq/timers/state.json"),
    *("raymq/state_sequence", "raymq/state_snapshot", "raymq/deleted_queues/1", "raymq/damaged/x"),
    *("raymq/rebuild_queues", "/etc/passwd", "/config/x", "../config/x", "config/../../x", "config/..", "config/./x"),
    *("config//x", "config/", "", ".", "..", "config/x\0y", "config/" + "x" * 2_000, "raymqx/y", "Config/x"),
]  # fmt: skip
STATE = [
    *("config/topics.json", "config/topics.json.bak.tmp", f"raymq/state/journal-{1:020d}"),
    *("raymq/timers/state.json", "raymq/timers/.x"),
    "raymq/producers.journal.beside",
    "raymq/epochs.json",
    *("raymq/counted_time.json", "raymq/set_aside.jsonl", "raymq/a_table_that_is_new"),
]  # fmt: skip


@pytest.mark.parametrize("path", NOT_STATE)
def test_path_outside_the_state_is_refused(path: str) -> None:
    assert not is_state(path)
    for operations in (
        [["m", path]],
        [["u", path]],
        [["c", path, True]],
        [["r", path, "config/x"]],
        [["r", "config/x", path]],
    ):
        with pytest.raises(StateMismatch):
            decode_change(msgpack.packb(operations[0]))
    with pytest.raises(StateMismatch):
        read_part(msgpack.packb([[path, 0, b"x"]]))


@pytest.mark.parametrize(
    "path", ["raymq/progress.journal", "raymq/topics.journal.beside", "raymq/homes/a", "raymq/staged/tx/p.chunk"]
)
def test_state_of_former_format_is_refused_with_the_remedy(path: str) -> None:
    assert is_stored_state(path), "a backup of such a directory has it"
    with pytest.raises(StateMismatch, match="stop all brokers of the group"):
        decode_change(msgpack.packb(["m", path]))
    with pytest.raises(StateMismatch, match="stop all brokers of the group"):
        read_part(msgpack.packb([[path, 0, b"x"]]))


@pytest.mark.parametrize("path", STATE)
def test_state_paths_are_recognized(path: str) -> None:
    assert is_state(path)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"no msgpack at all",
        *map(
            msgpack.packb,
            [
                7,
                [],
                ["w"],
                ["x", "config/x"],
                ["u", 7],
                ["u", "config/x", 1],
                ["u", b"config/x"],
                ["c", "config/x"],
                ["w", "config/x", 0],
                ["w", "config/x", -1, b"x"],
                ["w", "config/x", 1 << 62, b"x"],
                ["w", "config/x", True, b"x"],
                ["w", "config/x", 0, "text"],
                ["w", "config/x", 0, b""],
                ["a", "config/x", 1.0, b"x"],
                ["t", "config/x", -1],
                ["t", "config/x", 1 << 50],
                ["t", "config/x", None],
                ["r", "config/x", 7],
                {"w": 1},
                ["w", "config/x", 0, b"x", b"y"],
            ],
        ),
    ],
)
def test_malformed_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(StateMismatch):
        decode_change(payload)


@pytest.fixture
def replica(tmp_path: Path) -> StateReplica:
    """Create a replica with some files."""
    made = StateReplica(tmp_path / "replica")
    made.begin_snapshot()
    made.load(msgpack.packb([["config/folder", -1, b""], ["config/x", 0, b"12345"], ["config/folder/y", 0, b"y"]]))
    made.end_snapshot(7)
    return made


def change(number: int, operation: FileOperation, path: str, **fields: object) -> StateChange:
    return StateChange(number, 0, FileChange(operation, path, **fields).encode())  # type: ignore[arg-type]


def content(directory: Path) -> dict[str, bytes | str | None]:
    """Return all files below the folder, but the sequence number."""
    return {
        str(path.relative_to(directory)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(directory.rglob("*"))
        if path.name != "state_sequence"
    }


@pytest.mark.parametrize(
    ("operation", "path", "fields"),
    [
        (FileOperation.APPENDED, "config/x", {"at": 6, "content": b"x"}),
        (FileOperation.APPENDED, "config/x", {"at": 4, "content": b"x"}),
        (FileOperation.WRITTEN, "config/x", {"at": 6, "content": b"x"}),
        (FileOperation.WRITTEN, "config/x", {"at": 1 << 39, "content": b"x"}),
        (FileOperation.APPENDED, "config/none", {"at": 0, "content": b"x"}),
        (FileOperation.APPENDED, "config/folder", {"at": 0, "content": b"x"}),
        (FileOperation.APPENDED, "config/x/y", {"at": 0, "content": b"x"}),
        (FileOperation.APPENDED, "config/link", {"at": 7, "content": b"x"}),
        (FileOperation.APPENDED, "config/away/outside", {"at": 7, "content": b"x"}),
        (FileOperation.CREATED, "config/link", {"empty": True}),
        (FileOperation.CREATED, "config/dangling", {}),
        (FileOperation.CREATED, "config/away/new", {}),
        (FileOperation.CREATED, "config/folder", {}),
        (FileOperation.CREATED, "config/none/new", {}),
        (FileOperation.TRUNCATED, "config/link", {"at": 0}),
        (FileOperation.TRUNCATED, "config/folder", {"at": 0}),
        (FileOperation.TRUNCATED, "config/none", {"at": 0}),
        (FileOperation.RENAMED, "config/none", {"target": "config/x"}),
        (FileOperation.RENAMED, "config/x", {"target": "config/away/x"}),
        (FileOperation.RENAMED, "config/away/outside", {"target": "config/x"}),
        (FileOperation.RENAMED, "config/link", {"target": "config/x"}),
        (FileOperation.RENAMED, "config/x", {"target": "config/folder"}),
        (FileOperation.RENAMED, "config/folder", {"target": "config/x"}),
        (FileOperation.RENAMED, "config/x", {"target": "config/none/x"}),
        (FileOperation.UNLINKED, "config/none", {}),
        (FileOperation.UNLINKED, "config/folder", {}),
        (FileOperation.UNLINKED, "config/away/outside", {}),
        (FileOperation.FOLDER_MADE, "config/x", {}),
        (FileOperation.FOLDER_MADE, "config/away/folder", {}),
        (FileOperation.FOLDER_MADE, "config/none/folder", {}),
        (FileOperation.FOLDER_REMOVED, "config/folder", {}),
        (FileOperation.FOLDER_REMOVED, "config/x", {}),
    ],
)
def test_unfitting_change_leaves_files_untouched(
    tmp_path: Path, replica: StateReplica, operation: FileOperation, path: str, fields: dict[str, object]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "outside").write_bytes(b"outside")
    config = replica.directory / "config"
    (config / "link").symlink_to(outside / "outside")
    (config / "away").symlink_to(outside)
    (config / "dangling").symlink_to(outside / "nothing")
    before = content(tmp_path)
    with pytest.raises(StateMismatch):
        replica.apply([change(8, operation, path, **fields)])
    assert content(tmp_path) == before
    assert replica.last == 0, "what is here is not what its master has: it takes a snapshot"


def test_forged_change_rejects_the_whole_batch(replica: StateReplica) -> None:
    before = content(replica.directory)
    good = change(8, FileOperation.APPENDED, "config/x", at=5, content=b"6")
    with pytest.raises(StateMismatch):
        replica.apply([good, StateChange(9, 0, msgpack.packb(["u", "../config/x"]))])
    assert content(replica.directory) == before
    replica.apply([good])
    assert replica.last == 8


@pytest.mark.parametrize("number", [0, 7, 9, -1])
def test_change_out_of_sequence_is_refused(replica: StateReplica, number: int) -> None:
    with pytest.raises(InvalidInput):
        replica.apply([change(number, FileOperation.APPENDED, "config/x", at=5, content=b"6")])
    assert (replica.directory / "config/x").read_bytes() == b"12345"
    assert replica.last == 7


@pytest.mark.parametrize(
    "part",
    [
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb([7]),
        msgpack.packb([["config/x", 0]]),
        msgpack.packb([["config/x", -2, b""]]),
        msgpack.packb([["config/x", 1, b"x"]]),
        msgpack.packb([["config/x", 0, "text"]]),
        msgpack.packb([["config/x", 1 << 62, b"x"]]),
        msgpack.packb([["config/none/x", 0, b"x"]]),
        msgpack.packb([["raymq/broker.json", 0, b"x"]]),
        msgpack.packb([["config/x", 0, b"x"], ["config/x", 0, b"x"]]),
        msgpack.packb([["config/x", 0, b"x"], ["config/x", 3, b"x"]]),
        msgpack.packb([["config/x", -1, b""], ["config/x", -1, b""]]),
    ],
)
def test_forged_snapshot_part_is_refused(replica: StateReplica, part: bytes) -> None:
    replica.begin_snapshot()
    with pytest.raises(StateMismatch):
        replica.load(part)
    assert not replica.is_whole
    assert replica.last == 0


def test_snapshot_calls_out_of_order_are_refused(replica: StateReplica) -> None:
    with pytest.raises(InvalidInput):
        replica.load(msgpack.packb([["config/z", 0, b"x"]]))
    with pytest.raises(InvalidInput):
        replica.end_snapshot(9)
    replica.begin_snapshot()
    with pytest.raises(InvalidInput):
        replica.end_snapshot(0)
    with pytest.raises(InvalidInput):
        replica.apply([change(8, FileOperation.UNLINKED, "config/x")])
