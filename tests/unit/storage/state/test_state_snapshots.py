"""Test state snapshots: one moment despite later changes, and no state when aborted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raymq.storage.files import fileutil
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from tests.state_shipping import ship_state, state_of, take_snapshot


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[StateRecorder]:
    made = StateRecorder.begin(tmp_path / "master", log_end=lambda: 0)
    yield made
    made.stop()


def append(path: Path, content: bytes) -> None:
    fileutil.make_folder(path.parent)
    fd = fileutil.open_for_append(path)
    try:
        fileutil.write_all(fd, content, path)
    finally:
        fileutil.close(fd)


def truncate_to_share(path: Path, share: float) -> None:
    if not path.exists():
        return
    size = int(path.stat().st_size * share)
    fd = fileutil.open_for_append(path)
    try:
        fileutil.truncate(fd, size, path)
    finally:
        fileutil.close(fd)


def random_change(root: Path, random_: random.Random) -> Callable[[], None]:
    """Return a random change of small or large files in changing folders."""
    folders = [root / "config", *(root / "raymq" / name for name in ("kept/a", "kept/b", "timers"))]
    size = random_.choice((1, 50, 70_000, 1_200_000))
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file()]
    new = random_.choice(folders) / str(random_.randrange(5))
    old = random_.choice(paths) if paths else new
    removed = random_.choice(folders[1:3])
    aside = removed.with_name("." + removed.name)

    def put_aside() -> None:
        if removed.is_dir() and not aside.exists():
            fileutil.move(removed, aside)

    def replace() -> None:
        fileutil.make_folder(new.parent)
        fileutil.replace(new, random_.randbytes(size))

    def rename() -> None:
        if old.exists():
            fileutil.make_folder(new.parent)
            fileutil.move(old, new)

    return random_.choice(
        [
            replace,
            rename,
            lambda: append(new, random_.randbytes(size)),
            lambda: append(new if not old.exists() else old, random_.randbytes(20)),
            lambda: truncate_to_share(old, random_.random()),
            lambda: fileutil.unlink(old),
            put_aside,
            lambda: fileutil.remove_tree(aside),
        ]
    )


@pytest.mark.parametrize("seed", range(25))
def test_snapshot_and_later_changes_give_the_masters_files(tmp_path: Path, recorder: StateRecorder, seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(30):
        random_change(tmp_path / "master", random_)()
    snapshot = recorder.snapshot()
    at_that_moment = state_of(tmp_path / "master")
    moved = random_.random() < 0.9
    replica = StateReplica(tmp_path / "replica")
    replica.begin_snapshot()
    for part in snapshot.parts():
        replica.load(part)
        for _ in range(random_.choice((0, 1, 10)) if moved else 0):
            random_change(tmp_path / "master", random_)()
    replica.end_snapshot(snapshot.sequence)
    snapshot.close()
    if not moved:
        assert state_of(tmp_path / "replica") == at_that_moment
    assert {path: content and len(content) for path, content in state_of(tmp_path / "replica").items()} == {
        path: content and len(content) for path, content in at_that_moment.items()
    }
    for _ in range(10):
        random_change(tmp_path / "master", random_)()
    ship_state(recorder, replica)
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")


def test_aborted_snapshot_is_invalid_and_replaced_by_the_next(tmp_path: Path, recorder: StateRecorder) -> None:
    random_ = random.Random(1)
    for _ in range(60):
        random_change(tmp_path / "master", random_)()
    snapshot = recorder.snapshot()
    parts = list(snapshot.parts())
    snapshot.close()
    assert len(parts) > 2
    for count in range(len(parts) + 1):
        replica = StateReplica(tmp_path / "replica")
        replica.begin_snapshot()
        assert state_of(tmp_path / "replica") == {}
        for part in parts[:count]:
            replica.load(part)
        replica.close()
        died = StateReplica(tmp_path / "replica")
        assert not died.is_whole
        assert died.last == 0
        died.close()
    replica = StateReplica(tmp_path / "replica")
    take_snapshot(recorder, replica)
    assert replica.is_whole
    assert replica.last == recorder.last
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")
    replica.close()
    assert StateReplica(tmp_path / "replica").is_whole


def test_snapshot_of_many_small_files_has_small_parts(tmp_path: Path, recorder: StateRecorder) -> None:
    folder = tmp_path / "master" / "raymq" / "many"
    fileutil.make_folder(folder)
    for number in range(3_000):
        fileutil.make_folder(folder / f"{number:040d}", durable=False)
    for number in range(200):
        append(folder / f"{number:040d}" / "x", b"y" * number)
    replica = StateReplica(tmp_path / "replica")
    take_snapshot(recorder, replica)
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")


def test_closing_one_snapshot_keeps_a_newer_one_intact(tmp_path: Path, recorder: StateRecorder) -> None:
    path = tmp_path / "master" / "config" / "x"
    append(path, b"1" * 100_000)
    first, second = recorder.snapshot(), recorder.snapshot()
    fileutil.replace(path, b"2")
    first.close()
    first.close()
    replica = StateReplica(tmp_path / "replica")
    replica.begin_snapshot()
    for part in second.parts():
        replica.load(part)
    replica.end_snapshot(second.sequence)
    second.close()
    assert state_of(tmp_path / "replica") == {"config/x": b"1" * 100_000}
