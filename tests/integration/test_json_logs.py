"""Test that the actors of `raymq --log-format json cluster start` log one JSON object per line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.client import Admin, Connection
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(180)]

RAYMQ = str(Path(sys.executable).with_name("raymq"))


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Yield Ray's folder, with a path that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        yield Path(folder)


def json_lines(ray_folder: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of all Ray workers; lines of Ray itself begin with a colon."""
    texts = [path.read_text() for path in ray_folder.glob("ray/session_2*/logs/worker-*.err")]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith(":")]
    return [json.loads(line) for line in lines]


def environment_of(ray_folder: Path, tmp_path: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return environment | {"RAYMQ_HOME": str(tmp_path / "home"), "RAY_TMPDIR": str(ray_folder)}


def test_actors_log_json(tmp_path: Path, ray_folder: Path) -> None:
    environment = environment_of(ray_folder, tmp_path)
    start = [RAYMQ, "--log-format", "json", "cluster", "start", "--brokers", "1", "--root", str(tmp_path / "data")]
    pipe = subprocess.PIPE
    with subprocess.Popen([*start, "--json"], stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            name_servers = json.loads(process.stdout.readline())["name_servers"]
            with Connection(name_servers) as mq, Admin(mq) as admin:
                host, _, port = admin.cluster_info().brokers[0].address.rpartition(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(b"no frame" * 100)
                assert connection.recv(1) == b""
            poll_until(lambda: json_lines(ray_folder), 20)
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    progress = errors.splitlines()
    assert json.loads(progress[0])["message"] == "starting Ray in this process"
    assert progress[1:] == ["Ray runs in this process: Ctrl-C stops the cluster.", "stopping"]
    (line,) = json_lines(ray_folder)
    assert line["message"].startswith("closing the connection of ")
    assert (line["levelname"], line["name"]) == ("WARNING", "raymq.actors.wire.server_connection")
    assert line["actor_name"] == "broker-a"
