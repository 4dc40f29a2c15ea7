"""Test which of Ray's nodes can start Java workers, judged by this machine's processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray")

from raymq.spark_bridge.spark_placement import _folder_for_sockets, _raylets_of_this_machine
from tests.polling import poll_until


@contextmanager
def raylet(program: Path, node: str, java: str) -> Iterator[None]:
    """Run a process with a raylet's name and arguments."""
    arguments = [f"--node_id={node}", "--node_ip_address=127.0.0.1", f"--java_worker_command={java}"]
    command = [str(program), "-c", "import sys; sys.stdin.read()", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.kill()


def test_java_support_of_local_raylets_is_read_from_processes(tmp_path: Path) -> None:
    # Asking Ray took a worker on each node, a second or more.
    program = tmp_path / "raylet"
    program.symlink_to(sys.executable)
    with raylet(program, "a" * 56, "java -cp x"), raylet(program, "b" * 56, ""), raylet(program, "", "java"):
        found = poll_until(lambda: (seen := _raylets_of_this_machine()).keys() >= {"a" * 56, "b" * 56} and seen)
    assert (found["a" * 56], found["b" * 56]) == (True, False)
    assert "" not in found


@pytest.mark.parametrize("length", [4, 30, 31, 32, 33, 34, 35, 60, 200])
def test_socket_folder_keeps_paths_within_107_bytes(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Linux takes 107 bytes; temporary folders of tests, of macOS and of schedulers are long.
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * (length - 1))
    folder = _folder_for_sockets()
    assert folder in {"/tmp", tempfile.tempdir}
    names = f"{folder}/rq12345678/session_2026-11-23_10-39-06_365525_4194304/sockets/plasma_store"
    assert len(names) <= 107
    assert length > 32 or folder == tempfile.tempdir
