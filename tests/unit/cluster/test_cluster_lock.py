"""Test the lock that serialises cluster starts, and the safety of a user's cluster files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raymq.client.errors import BrokerUnavailable, InvalidInput
from raymq.cluster import cluster_file
from raymq.cluster.cluster_lock import cluster_lock

OTHER = """
import sys
from raymq.cluster.cluster_lock import cluster_lock
with cluster_lock("one"):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def cluster_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@contextmanager
def another_start() -> Iterator[subprocess.Popen[str]]:
    """Run a process that has the lock until its input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        try:
            assert it.stdout is not None
            assert it.stdout.readline() == "has it\n"
            yield it
        finally:
            it.kill()


def test_lock_held_by_a_stopped_process_has_a_remedy() -> None:
    with another_start() as other:
        os.kill(other.pid, signal.SIGSTOP)
        with (
            pytest.raises(BrokerUnavailable, match=f"process {other.pid} .* was stopped") as caught,
            cluster_lock("one", 60, 0.1),
        ):
            pass
        assert f"kill -CONT {other.pid}" in str(caught.value)


def test_lock_held_too_long_names_the_process() -> None:
    with another_start() as other:
        with (
            pytest.raises(BrokerUnavailable, match=f"process {other.pid} .* has not finished"),
            cluster_lock("one", 0.1, 60),
        ):
            pass
        with cluster_lock("another namespace", 0.1):
            pass


def test_lock_is_free_after_its_process_ends() -> None:
    for end in ("closes", "is killed"):
        with another_start() as other:
            assert other.stdin is not None
            if end == "closes":
                other.stdin.close()
            else:
                other.kill()
            with cluster_lock("one", 30):
                pass
            with cluster_lock("one", 0.0):
                pass


def test_forked_child_does_not_keep_the_lock() -> None:
    reads, writes = os.pipe()
    with cluster_lock("one", 30):
        child = os.fork()
        if not child:
            os.close(writes)
            os.read(reads, 1)  # until the parent closes its end
            os._exit(0)
    try:
        with cluster_lock("one", 0.0):
            pass
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(child, 0)


def test_file_system_without_locks_is_refused(cluster_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(InvalidInput, match=f"{cluster_file.HOME_VARIABLE}.*file system that supports locks.*No locks"),
        cluster_lock("one"),
    ):
        pass


def test_content_of_the_lock_file_is_ignored(cluster_folder: Path) -> None:
    for content in (b"", b"none", b"-1", b"9" * 100):
        cluster_file.lock_file("one").write_bytes(content)
        with cluster_lock("one", 0.0):
            assert cluster_file.lock_file("one").read_text() == str(os.getpid())


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a user without a home; it does not exist yet."""
    monkeypatch.delenv(cluster_file.HOME_VARIABLE)
    monkeypatch.setenv("HOME", "/dev/null/nowhere")
    monkeypatch.setattr(cluster_file.tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"raymq-{os.getuid()}"


def test_user_without_home_gets_a_private_folder(temporary_folder: Path) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    known = cluster_file.load("one")
    assert known is not None
    assert known.name_servers == ("127.0.0.1:9876",)
    assert temporary_folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("made", ["mode 777", "by another user", "as a link", "as a file"])
def test_folder_that_others_may_have_written_is_refused(
    temporary_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    other = tmp_path / "other"
    if made == "as a link":
        other.mkdir(mode=0o700)
        temporary_folder.symlink_to(other)
    elif made == "as a file":
        temporary_folder.touch()
    else:
        temporary_folder.mkdir(mode=0o700)
    if made != "as a file":
        (temporary_folder / "one.json").write_text('{"name_servers": ["6.6.6.6:9876"]}')
    if made == "mode 777":
        temporary_folder.chmod(0o777)
    if made == "by another user":
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
        temporary_folder.rename(tmp_path / f"raymq-{mine + 1}")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=cluster_file.HOME_VARIABLE):
            cluster_file.load("one")
        cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    with pytest.raises(InvalidInput, match=cluster_file.HOME_VARIABLE), cluster_lock("one", 0.0):
        pass


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_cluster_file_with_write_access_for_others_is_refused(cluster_folder: Path, mode: int) -> None:
    """A user with write access could lead this user's programs to another cluster."""
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    file = cluster_file.lock_file("one").with_suffix(".json")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(mode)
    with pytest.raises(InvalidInput, match=f"chmod go-w {file}"):
        cluster_file.load("one")
    file.chmod(0o644)
    assert cluster_file.load("one") is not None


def test_folder_with_write_access_for_others_is_refused(cluster_folder: Path) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    folder = cluster_file.lock_file("one").parent
    folder.chmod(0o770)
    with pytest.raises(InvalidInput, match=f"chmod go-w {folder}"):
        cluster_file.load("one")
    with pytest.raises(InvalidInput, match="chmod go-w"), cluster_lock("one", 0.0):
        pass
    cluster_file.forget("one", None)  # succeeds: a stopped cluster must not fail because of the folder
    folder.chmod(0o755)
    assert cluster_file.load("one") is not None


def test_cluster_file_of_another_user_is_refused(cluster_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(InvalidInput, match=f"set {cluster_file.HOME_VARIABLE} to another folder"):
        cluster_file.load("one")


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"name_servers": ' + "[" * 100_000,
        '{"name_servers": 1e999}',
        '{"name_servers": "127.0.0.1:9876"}',
        '{"name_servers": [], "ray_address": 7}',
        '{"name_servers": [], "tls": {"unknown": 1}}',
        '{"name_servers": [], "tls": 7}',
        "[]",
        "",
        "\0",
    ],
    ids=range(10),
)
def test_invalid_cluster_file_is_ignored(cluster_folder: Path, content: str) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    cluster_file.lock_file("one").with_suffix(".json").write_text(content)
    assert cluster_file.load("one") is None
