"""Which of Ray's nodes can start Java workers, as far as this machine's processes tell."""

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
    """A process that has a raylet's name and arguments."""
    arguments = [f"--node_id={node}", "--node_ip_address=127.0.0.1", f"--java_worker_command={java}"]
    command = [str(program), "-c", "import sys; sys.stdin.read()", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.kill()


def test_raylets_of_this_machine_are_not_asked_whether_they_have_a_java(tmp_path: Path) -> None:
    """It took a worker of each, a second or more."""
    program = tmp_path / "raylet"
    program.symlink_to(sys.executable)
    with raylet(program, "a" * 56, "java -cp x"), raylet(program, "b" * 56, ""), raylet(program, "", "java"):
        found = poll_until(lambda: (seen := _raylets_of_this_machine()).keys() >= {"a" * 56, "b" * 56} and seen)
    assert (found["a" * 56], found["b" * 56]) == (True, False)
    assert "" not in found


@pytest.mark.parametrize("length", [4, 30, 31, 32, 33, 34, 35, 60, 200])
def test_a_node_of_ray_has_its_sockets_where_their_names_are_not_too_long(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes 107 bytes; temporary folders of tests, of macOS and of schedulers are longer than it looks."""
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * (length - 1))
    folder = _folder_for_sockets()
    assert folder in {"/tmp", tempfile.tempdir}
    names = f"{folder}/rq12345678/session_2026-11-23_10-39-06_365525_4194304/sockets/plasma_store"
    assert len(names) <= 107
    assert length > 32 or folder == tempfile.tempdir
