"""Test that a directory of format 1 is converted whole, also over kills and on full disks.

The directories in tests/fixtures/format_1 were written by the last version with that format; one was closed, the other
one was killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raymq.storage import checkpointer, store_parts
from raymq.storage.config import StoreConfig
from raymq.storage.directory_format import CURRENT_FORMAT, read_format
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import NAMES, arm
from raymq.storage.files.file_calls import replaced
from raymq.storage.former_files import former_format
from raymq.storage.store import Store
from raymq.storage.tables.write_transactions import SeriesCommit, WriteState, WriteTransaction
from tests.faulty_calls import FaultyCalls, UnsyncedCalls
from tests.store_records import SMALL, bodies

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)
FORMER = ("homes", "members", "streams", "writes", "series", "transaction_checks")
JOURNALS = tuple(f"{name}.journal" for name in ("deletions", "topics", "groups", "progress", "in_flight"))
DONE = WriteTransaction(
    "done-1",
    "orders",
    WriteState.COMMITTED,
    11.5,
    "query/sink",
    7,
    {"broker-a": {"p0": 3}, "broker-b": {"p1": 4}},
    frozenset({"broker-a"}),
    {"broker-a": (1, "lost")},
    {"broker-a": 1},
)
WRITTEN = {
    "coordinators": [("series", "query/sink", "broker-a"), ("stream", "s1", "broker-b")],
    "brokers": {"broker-a": True, "broker-b": True, "broker-c": False},
    "plans": [[(1, b"plan 1"), (2, b"plan 2")], [(0, b"other")]],
    "latest": "q2",
    "writes": [
        DONE,
        WriteTransaction("not-1", "orders", WriteState.ABORTED, 12.5),
        WriteTransaction("open-1", "orders", WriteState.OPEN, 10.5),
    ],
    "series": SeriesCommit("query/sink", 7, "done-1", 7),
    "checks": (2, 1, 512),
    "topics": {"again": 1, "imported": 8, "orders": 4},
    "groups": {"g1": 3, "g2": 16},
    "offsets": [2, 3, None, 1],
    "reset": 1,
    "delivered": {("g1", "orders", 0): (3, [2])},
    "mode": "POP",
    "orders": [[b"0", b"2", b"4"], [b"1", b"3", b"5"]],
    "again": [b"new"],
}


def content_of(store: Store) -> dict[str, Any]:
    """Return what the store has of what was written."""
    tables, offsets = store.tables, store.consumer_offsets
    checks, plans = tables.transaction_checks, tables.stream_plans
    topics, groups = store.topic_configs, store.group_configs
    return {
        "coordinators": sorted(tables.coordinators.page("", 10).entries),
        "brokers": dict(tables.known_brokers.known),
        "plans": [plans.kept("s1", "q1"), plans.kept("s1", "q2")],
        "latest": plans.latest_query("s1"),
        "writes": sorted(tables.writes.transactions(), key=lambda each: each.transaction),
        "series": tables.writes.end("query/sink"),
        "checks": (checks.asked(3), checks.asked(9), checks.known_before),
        "topics": {name: topics.get(name).read_queues for name in topics.all() if name in WRITTEN["topics"]},
        "groups": {name: groups.get(name).retry_max_times for name in ("g1", "g2")},
        "offsets": [offsets.get(*queue) for queue in (("g1", "orders", 0), ("g1", "orders", 1), ("g1", "gone", 0))]
        + [offsets.get("g2", "again", 0)],
        "reset": offsets.get("g2", "orders", 0),
        "delivered": {
            queue: (each.next_offset, list(each.deliveries)) for queue, each in store.in_flight.queues.items()
        },
        "mode": store.request_modes.get("orders", "g1").mode,
        "orders": [bodies(store, queue_id=0), bodies(store, queue_id=1)],
        "again": bodies(store, "again"),
    }


@pytest.fixture(autouse=True)
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open the directories on a machine that has been restarted since."""
    for module in (store_parts, checkpointer):
        monkeypatch.setattr(module, "boot_id", lambda: "another")
    with replaced(UnsyncedCalls()):
        yield


@pytest.fixture(params=["closed", "killed"])
def former(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Path:
    """Unpack a directory of format 1."""
    folder = tmp_path / "former"
    folder.mkdir()
    with tarfile.open(repository / "tests" / "fixtures" / "format_1" / f"{request.param}.tar.xz") as archive:
        archive.extractall(folder)
    return folder


def copied(former: Path, name: str) -> Path:
    return Path(shutil.copytree(former, former.with_name(name)))


def former_files(directory: Path) -> list[str]:
    names = [path.name for path in sorted((directory / "raymq").iterdir())]
    return [name for name in names if former_format(name)]


def check_converted(directory: Path) -> None:
    """Check that a start, and another one, find what was written, and nothing of format 1 is left."""
    for _ in range(2):
        with Store.open(directory, CONFIG) as store:
            assert content_of(store) == WRITTEN
            assert store.recovery.corruption == []
        assert former_files(directory) == []
        assert read_format(directory).number == CURRENT_FORMAT
    with Store.open(directory, CONFIG, read_only=True) as store:
        assert content_of(store) == WRITTEN


def test_directory_of_format_1_is_converted(former: Path) -> None:
    assert read_format(former).number == 1
    assert {*FORMER, *JOURNALS} <= set(former_files(former))
    check_converted(former)


def test_read_only_store_of_format_1_changes_no_file(former: Path) -> None:
    def files() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in former.rglob("*")}

    before = files()
    with Store.open(former, CONFIG, read_only=True) as store:
        assert content_of(store) == WRITTEN
    assert files() == before


def killed_at(step: str, directory: Path, config: StoreConfig = CONFIG) -> bool:
    """Open the directory in a child that is killed at a failpoint; return False if it does not reach it."""
    child = os.fork()
    if not child:
        try:
            arm(step)
            Store.open(directory, config)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


STEPS = [name for name in NAMES if name.startswith(("format.", "state.", "replace.", "export."))]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("step", STEPS)
def test_killed_conversion_loses_nothing(former: Path, step: str) -> None:
    times = 1
    while killed_at(f"{step}:{times}", directory := copied(former, str(times))):
        with Store.open(directory, CONFIG, read_only=True) as store:
            assert content_of(store) == WRITTEN
        check_converted(directory)
        shutil.rmtree(directory)
        times += 1
    assert times > 1 or step in {"state.before_removal", "state.before_write", "state.after_write"}


def test_conversion_killed_again_and_again_loses_nothing(former: Path) -> None:
    kills, count = 0, len(former_files(former))
    for step in ("format.after_file", "state.before_snapshot", "state.after_snapshot"):
        kills += killed_at(step, former)
    while killed_at("format.before_removal:2", former):
        kills += 1
    assert kills == 3 + count - 1
    check_converted(former)


def open_and_close(directory: Path) -> None:
    Store.open(directory, CONFIG).close()


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", ["open", "write", "short_write", "truncate", "allocate", "rename", "make_folder"])
def test_conversion_on_a_full_disk_loses_nothing(former: Path, kind: str) -> None:
    counted = FaultyCalls(real=UnsyncedCalls())
    with replaced(counted):
        open_and_close(copied(former, "counted"))
    refused = 0
    for nth in range(1, counted.counts["write" if kind == "short_write" else kind] + 1):
        directory = copied(former, str(nth))
        with replaced(FaultyCalls(kind, nth, errno.ENOSPC, lasting=True, real=UnsyncedCalls())):
            try:
                open_and_close(directory)
            except StoreError:
                refused += 1
        check_converted(directory)
        shutil.rmtree(directory)
    assert refused or kind in ("allocate", "make_folder")


def test_conversion_on_a_failing_disk_loses_nothing(former: Path) -> None:
    counted = FaultyCalls(real=UnsyncedCalls())
    with replaced(counted):
        open_and_close(copied(former, "counted"))
    for kind in ("fsync", "fdatasync", "unlink", "remove_folder"):
        for nth in range(1, counted.counts[kind] + 1):
            directory = copied(former, f"{kind}{nth}")
            failing = FaultyCalls(kind, nth, errno.EIO, real=UnsyncedCalls())
            with replaced(failing), contextlib.suppress(StoreError):
                open_and_close(directory)
            check_converted(directory)
            shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("members", {"brokers": {}}),
        ("transaction_checks", {"checks": (None, None, 0)}),
        ("streams/s1/q1", {"plans": [[], [(0, b"other")]]}),
        ("writes/open-1", {"writes": WRITTEN["writes"][:2]}),
        ("homes", {"coordinators": []}),
        ("series", {"series": None}),
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"\xc1", b"\x81\x01\xc3", b"\x92\x01\x90", b"\x90", b"\x91\x80", b"\x92\xc0\xcb"]
)
def test_damaged_file_of_format_1_loses_only_itself(
    former: Path, name: str, lost: dict[str, Any], content: bytes
) -> None:
    path = former / "raymq" / name
    for each in path.iterdir() if path.is_dir() else [path]:
        each.write_bytes(content)
    for _ in range(2):
        with Store.open(former, CONFIG) as store:
            assert content_of(store) == WRITTEN | lost


def test_one_damaged_copy_in_a_file_of_format_1_is_ignored(former: Path) -> None:
    files = [path for name in FORMER for path in (former / "raymq" / name).rglob("*") if path.is_file()]
    for path in [*files, former / "raymq" / "transaction_checks"]:
        content = bytearray(path.read_bytes())
        content[len(content) // 4] ^= 1
        path.write_bytes(content)
    check_converted(former)


def test_rest_of_an_interrupted_replacement_is_ignored(former: Path) -> None:
    for name in ("homes/55fe.tmp", "writes/x.tmp", "series/x.tmp", "streams/s1/q9.tmp", "members.tmp"):
        (former / "raymq" / name).write_bytes(b"rest")
    check_converted(former)
