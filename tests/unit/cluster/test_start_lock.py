"""Starts of one user in one namespace, one after the other; and where the files of a user's clusters lie."""

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
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@contextmanager
def another_start() -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock until its input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        try:
            assert it.stdout is not None
            assert it.stdout.readline() == "has it\n"
            yield it
        finally:
            it.kill()


def test_a_start_that_was_stopped_is_named_with_what_to_do() -> None:
    with another_start() as other:
        os.kill(other.pid, signal.SIGSTOP)
        with (
            pytest.raises(BrokerUnavailable, match=f"process {other.pid} .* was stopped") as caught,
            cluster_lock("one", 60, 0.1),
        ):
            pass
        assert f"kill -CONT {other.pid}" in str(caught.value)


def test_a_start_that_takes_too_long_is_named() -> None:
    with another_start() as other:
        with (
            pytest.raises(BrokerUnavailable, match=f"process {other.pid} .* has not finished"),
            cluster_lock("one", 0.1, 60),
        ):
            pass
        with cluster_lock("another namespace", 0.1):
            pass


def test_a_start_that_ends_or_is_killed_lets_the_next_one_in() -> None:
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


def test_a_process_that_is_forked_meanwhile_does_not_keep_the_lock() -> None:
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


def test_a_file_system_without_locks_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(InvalidInput, match=f"{cluster_file.HOME_VARIABLE}.*file system that supports locks.*No locks"),
        cluster_lock("one"),
    ):
        pass


def test_a_lock_file_with_anything_in_it_does_not_matter(home: Path) -> None:
    for content in (b"", b"none", b"-1", b"9" * 100):
        cluster_file.lock_file("one").write_bytes(content)
        with cluster_lock("one", 0.0):
            assert cluster_file.lock_file("one").read_text() == str(os.getpid())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a user without a home gets, not made yet."""
    monkeypatch.delenv(cluster_file.HOME_VARIABLE)
    monkeypatch.setenv("HOME", "/dev/null/nowhere")
    monkeypatch.setattr(cluster_file.tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"raymq-{os.getuid()}"


def test_a_user_without_a_home_has_a_folder_of_its_own(temporary: Path) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    known = cluster_file.load("one")
    assert known is not None
    assert known.name_servers == ("127.0.0.1:9876",)
    assert temporary.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("made", ["mode 777", "by another user", "as a link", "as a file"])
def test_a_folder_that_somebody_else_may_have_filled_is_not_believed(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    other = tmp_path / "other"
    if made == "as a link":
        other.mkdir(mode=0o700)
        temporary.symlink_to(other)
    elif made == "as a file":
        temporary.touch()
    else:
        temporary.mkdir(mode=0o700)
    if made != "as a file":
        (temporary / "one.json").write_text('{"name_servers": ["6.6.6.6:9876"]}')
    if made == "mode 777":
        temporary.chmod(0o777)
    if made == "by another user":
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
        temporary.rename(tmp_path / f"raymq-{mine + 1}")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=cluster_file.HOME_VARIABLE):
            cluster_file.load("one")
        cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    with pytest.raises(InvalidInput, match=cluster_file.HOME_VARIABLE), cluster_lock("one", 0.0):
        pass


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_another_user_may_write_leads_nobody_anywhere(home: Path, mode: int) -> None:
    """Who may write it could lead this user's programs to a cluster of his own."""
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    file = cluster_file.lock_file("one").with_suffix(".json")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(mode)
    with pytest.raises(InvalidInput, match=f"chmod go-w {file}"):
        cluster_file.load("one")
    file.chmod(0o644)
    assert cluster_file.load("one") is not None


def test_neither_does_a_folder(home: Path) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    folder = cluster_file.lock_file("one").parent
    folder.chmod(0o770)
    with pytest.raises(InvalidInput, match=f"chmod go-w {folder}"):
        cluster_file.load("one")
    with pytest.raises(InvalidInput, match="chmod go-w"), cluster_lock("one", 0.0):
        pass
    cluster_file.forget("one", None)  # the cluster was stopped: that is no reason to fail
    folder.chmod(0o755)
    assert cluster_file.load("one") is not None


def test_nor_a_file_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_file_of_anything_else_says_nothing(home: Path, content: str) -> None:
    cluster_file.save("one", ["127.0.0.1:9876"], None, None)
    cluster_file.lock_file("one").with_suffix(".json").write_text(content)
    assert cluster_file.load("one") is None
