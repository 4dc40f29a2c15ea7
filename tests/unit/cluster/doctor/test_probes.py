"""Test the probes of `raymq doctor` on a real machine, its processes and directories."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raymq.cluster.doctor import host_probes
from raymq.cluster.doctor.host_checks import check_machine
from raymq.cluster.doctor.process_checks import is_orphan
from raymq.storage.files.directory_lock import DirectoryLock
from raymq.storage.store import Store
from raymq.storage.tables.broker_identity import write_identity
from tests.store_records import SMALL, append, make_record

HOLDER = """
import sys
from raymq.storage.store import Store
with Store.open(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.read()
"""


def test_probes_read_this_machine(tmp_path: Path) -> None:
    seen = host_probes.read_machine([str(tmp_path)])
    assert seen.host == socket.gethostname()
    assert seen.wanted_ray == (">=2.60,<2.61", True)
    assert seen.ray
    (disk,) = seen.disks
    assert disk.sync_ms is not None
    assert disk.write_mb is not None
    assert list(tmp_path.iterdir()) == []
    assert len({each.check for each in check_machine(seen)}) == 8


def test_unwritable_folder_has_no_disk_speed(tmp_path: Path) -> None:
    disk = host_probes.read_disk("/proc")
    assert (disk.sync_ms, disk.write_mb) == (None, None)


def test_low_open_file_limit_is_a_problem() -> None:
    """The check runs in a child process, as a hard limit cannot be raised again."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "from raymq.cluster.doctor.host_probes import read_machine\n"
        "from raymq.cluster.doctor.host_checks import check_open_files\n"
        "print(check_open_files(read_machine()).severity.value)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "problem"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 200


def test_store_probe_names_the_lock_holder(tmp_path: Path) -> None:
    directory = tmp_path / "broker-a"
    assert host_probes.stores_below(tmp_path) == []
    with Store.open(directory, SMALL) as store:
        append(store, make_record(b"x"))
        assert host_probes.read_store(str(directory), []).holder == os.getpid()
        assert DirectoryLock.holder(directory / "lock") == os.getpid()
        append(store, make_record(b"looking has not taken the lock away"))
    assert host_probes.stores_below(tmp_path) == [str(directory)] == host_probes.stores_below(directory)
    seen = host_probes.read_store(str(directory), [])
    assert (seen.holder, seen.was_closed, seen.is_restoring, seen.foreign) == (None, True, False, ())
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        seen = host_probes.read_store(str(directory), [])
        assert seen.holder == other.pid
        assert "python" in seen.holder_title
        other.kill()
    seen = host_probes.read_store(str(directory), [])
    assert (seen.holder, seen.was_closed) == (None, False)


def test_store_probe_finds_a_port_in_use(tmp_path: Path) -> None:
    (tmp_path / "raymq").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = tmp_path / "raymq" / "broker.json"
        write_identity(path, name="b", cluster="c", host="127.0.0.1", port=port, epoch=1)
        assert host_probes.read_store(str(tmp_path), []).address_is_taken
    assert not host_probes.read_store(str(tmp_path), []).address_is_taken


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_store_probe_finds_files_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_bytes(b"{}")
    os.chown(tmp_path / "config" / "topics.json", 12345, 12345)
    assert host_probes.read_store(str(tmp_path), []).foreign == (str(tmp_path / "config" / "topics.json"),)


def test_actor_process_without_a_ray_parent_is_an_orphan() -> None:
    with run_cat_process("-c") as plain:
        assert plain.pid not in {each.pid for each in host_probes.read_processes()}
    with run_cat_process("ray::Broker", "-") as actor:
        found = {each.pid: each for each in host_probes.read_processes()}
        assert is_orphan(found[actor.pid]), "its parent is no Ray node"


@contextmanager
def run_cat_process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `cat` with these arguments, and wait until its command line can be read."""
    with subprocess.Popen(arguments, executable="/bin/cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("version", "part", "fits"),
    [("2.60.0", ">=2.60", True), ("2.59.1", ">=2.60", False), ("2.61.0", "<2.61", False), ("2.60.5", "<2.61", True)],
)
def test_version_ranges_are_compared(version: str, part: str, fits: bool) -> None:
    assert host_probes._fits(version, part) is fits
